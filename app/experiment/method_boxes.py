"""The methods as check boxes, each in the colour it has in every plot and table."""

from collections.abc import Iterable

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QCheckBox, QGridLayout, QVBoxLayout, QWidget

from app.widgets.plain import PlainLabel, plain_tooltip
from app.widgets.theme import method_color
from mesp_core.methods.registry import COMPARED, METHODS

COLUMNS = 2
LOOKS = (QEvent.Type.PaletteChange, QEvent.Type.StyleChange, QEvent.Type.FontChange)


class MethodBoxes(QWidget):
    """Which methods are compared."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("methods")
        self._boxes = {name: QCheckBox(name) for name in METHODS}
        self._error = PlainLabel("error_methods", "bad")
        grid = QGridLayout()
        grid.setContentsMargins(2, 0, 2, 0)
        for i, (name, box) in enumerate(self._boxes.items()):
            box.setObjectName(f"method_{name}")
            box.setToolTip(plain_tooltip(METHODS[name].description))
            box.setAccessibleDescription(METHODS[name].description)
            box.setChecked(name in COMPARED)
            box.toggled.connect(self.changed)
            grid.addWidget(box, i // COLUMNS, i % COLUMNS)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(grid)
        layout.addWidget(self._error)
        self._paint_swatches()

    def value(self) -> tuple[str, ...]:
        """The methods ticked, in their order on the screen."""
        return tuple(name for name, box in self._boxes.items() if box.isChecked())

    def set_value(self, methods: Iterable[str]) -> None:
        """Tick these and no others."""
        for name, box in self._boxes.items():
            box.setChecked(name in methods)

    def set_error(self, message: str) -> None:
        """Say what is wrong with the choice; "" for nothing."""
        self._error.set_text(message)

    def changeEvent(self, event: QEvent) -> None:
        """New colours on a new ground, new sizes with a new font."""
        super().changeEvent(event)
        if event.type() in LOOKS:
            self._paint_swatches()

    def _paint_swatches(self) -> None:
        side = self.fontMetrics().ascent()
        for name, box in self._boxes.items():
            box.setIcon(_swatch(method_color(name), side, self.devicePixelRatioF()))


def _swatch(color: QColor, side: int, ratio: float) -> QIcon:
    pixmap = QPixmap(round(side * ratio), round(side * ratio))
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawRoundedRect(0, 0, side, side, side / 4, side / 4)
    painter.end()
    icon = QIcon(pixmap)
    icon.addPixmap(pixmap, QIcon.Mode.Disabled)  # while a run goes on, too, the colour says which curve is whose
    return icon
