"""A label for one line of foreign text that may be longer than the window is wide."""

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.widgets.plain import plain_tooltip


class ElidedLabel(QLabel):
    """Plain text with its middle left out where there is no room; the whole text is the tooltip."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName=name)
        self._whole = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def show_text(self, text: str, tooltip: str | None = None) -> None:
        """Show this text, on one line."""
        self._whole = " ".join(text.split())
        self.setToolTip(plain_tooltip(tooltip or text))
        self.setAccessibleName(self._whole)
        self.updateGeometry()
        self._elide()

    def sizeHint(self) -> QSize:
        """As wide as the whole text."""
        return QSize(self.fontMetrics().horizontalAdvance(self._whole) + 2, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        """As wide as a few letters."""
        hint = self.sizeHint()
        return QSize(min(8 * self.fontMetrics().averageCharWidth(), hint.width()), hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """More room, more text."""
        super().resizeEvent(event)
        self._elide()

    def changeEvent(self, event: QEvent) -> None:
        """A larger font, less text."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "_whole"):
            self.updateGeometry()
            self._elide()

    def _elide(self) -> None:
        self.setText(self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideMiddle, self.width()))
