"""A line edit for paths."""

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPaintEvent, QPalette
from PySide6.QtWidgets import QLineEdit, QStyle, QStyleOptionFrame, QStylePainter


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
