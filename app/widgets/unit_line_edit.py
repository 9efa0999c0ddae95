"""A line edit that shows the unit of its number."""

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QLineEdit

GAP = 4


class UnitLineEdit(QLineEdit):
    """The unit stands at the right end, inside, so that fields with and without one are equally wide."""

    def __init__(self, unit: str = "") -> None:
        super().__init__()
        self._unit = unit
        self._make_room()

    def changeEvent(self, event: QEvent) -> None:
        """The unit has the size of the font."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._make_room()

    def paintEvent(self, event: QPaintEvent) -> None:
        """The text, and the unit paler than it."""
        super().paintEvent(event)
        if self._unit:
            painter = QPainter(self)
            painter.setPen(self.palette().color(QPalette.ColorRole.Text))
            painter.setOpacity(0.55)
            where = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(self.rect().adjusted(0, 0, -2 * GAP, 0), int(where), self._unit)

    def _make_room(self) -> None:
        width = self.fontMetrics().horizontalAdvance(self._unit) + 2 * GAP if self._unit else 0
        self.setTextMargins(0, 0, width, 0)
