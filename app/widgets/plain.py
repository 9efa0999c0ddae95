"""Foreign text on the screen: paths, ids and messages are shown as they are, never read as rich text, and always fit."""

import html

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QTextLayout, QTextOption
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.widgets.theme import level_color


def plain_tooltip(text: str) -> str:
    """A tooltip that shows `text` as it is, blanks and line ends too, long lines broken; "" for none.

    Qt would take a text that looks like HTML for HTML, and would never break the lines of one that does not.
    """
    return f'<qt style="white-space:pre-wrap">{html.escape(text)}</qt>' if text else ""


class PlainLabel(QLabel):
    """A label that breaks lines anywhere if it must, since a path has no blanks. Invisible while empty.

    `level`: good, warning or bad colour it (see app.widgets.theme); None is the colour of text.
    """

    def __init__(self, name: str, level: str | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self.setTextFormat(Qt.TextFormat.PlainText)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self._level = level
        self.setVisible(False)

    def set_text(self, text: str, level: str | None = None) -> None:
        """Show `text`; `level` replaces the colour if given."""
        self._level = level or self._level
        self.setText(text)
        self.setVisible(bool(text))
        self.updateGeometry()
        self.update()

    def hasHeightForWidth(self) -> bool:
        """As Qt asks."""
        return True

    def heightForWidth(self, width: int) -> int:
        """Pixels for all lines at this width."""
        return self._lay_out(width)[1]

    def sizeHint(self) -> QSize:
        """One line; the layout gives more by `heightForWidth`."""
        return QSize(0, self.fontMetrics().height())

    def minimumSizeHint(self) -> QSize:
        """Any width will do."""
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        """The lines, in the level's colour of now."""
        painter = QPainter(self)
        usable = self.isEnabled() and self._level is not None
        painter.setPen(level_color(self._level) if usable else self.palette().color(QPalette.ColorRole.WindowText))
        self._lay_out(self.width())[0].draw(painter, QPointF(0, 0))

    def _lay_out(self, width: int) -> tuple[QTextLayout, int]:
        layout = QTextLayout(self.text().replace("\n", "\u2028"), self.font())
        layout.setTextOption(QTextOption(Qt.AlignmentFlag.AlignLeft))
        option = layout.textOption()
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        layout.setTextOption(option)
        layout.beginLayout()
        height = 0.0
        while (line := layout.createLine()).isValid():
            line.setLineWidth(max(1, width))
            line.setPosition(QPointF(0, height))
            height += line.height()
        layout.endLayout()
        return layout, int(height + 0.999)
