"""Foreign text on the screen: paths, ids and messages are shown as they are, never read as rich text, and always fit."""

import html

from PySide6.QtCore import QEvent, QPointF, QRect, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QTextLayout, QTextOption
from PySide6.QtWidgets import QLabel, QLineEdit, QSizePolicy, QStyle, QStyleOptionFrame, QStylePainter, QWidget

from app.theme import level_color


def plain_tooltip(text: str) -> str:
    """A tooltip that shows `text` as it is, broken into lines: Qt would take one that looks like HTML for HTML."""
    return f"<qt>{html.escape(text)}</qt>" if text else ""


class PlainLabel(QLabel):
    """A label that breaks lines anywhere if it must, since a path has no blanks. Invisible while empty.

    `level`: good, warning or bad colour it (see app.theme); None is the colour of text.
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


class ElidedLineEdit(QLineEdit):
    """A line edit whose text, while nobody edits it, is shortened in the middle: a path's end says most about it."""

    def paintEvent(self, event: QPaintEvent) -> None:
        """As ever with the focus, or where all of it fits."""
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        rect = self._text_rect(option)
        shown = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideMiddle, rect.width())
        if self.hasFocus() or shown == self.text():
            super().paintEvent(event)
            return
        painter = QStylePainter(self)
        painter.drawPrimitive(QStyle.PrimitiveElement.PE_PanelLineEdit, option)
        painter.setPen(self.palette().color(QPalette.ColorRole.Text))
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), shown)

    def _text_rect(self, option: QStyleOptionFrame) -> QRect:
        contents = self.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, self)
        return contents.adjusted(2, 0, -2, 0)  # QLineEdit's own margin, which it does not tell


def repaints(event: QEvent) -> bool:
    """Whether a change event means other colours."""
    return event.type() in (QEvent.Type.PaletteChange, QEvent.Type.StyleChange)
