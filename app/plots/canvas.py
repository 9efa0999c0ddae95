"""The ground curves are drawn on: two axes with labels and a grid, in the palette's colours and the widget's font."""

import math

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QRectF, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPalette

from app.plots.quantity import Quantity


class Axis(pg.AxisItem):
    """An axis without SI prefixes; one of a whole quantity has no ticks between whole numbers."""

    def __init__(self, orientation: str, quantity: Quantity) -> None:
        self._whole = quantity.whole
        super().__init__(orientation, maxTickLength=-4)
        self.enableAutoSIPrefix(False)
        self.setLabel(quantity.label)
        self.setStyle(maxTickLevel=0, autoExpandTextSpace=False)

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:
        """pyqtgraph's choice, made wider until there is room for the labels."""
        if not math.isfinite(maxVal - minVal) or maxVal <= minVal:
            return []
        metrics = QFontMetrics(self.style["tickFont"] or QFont())
        room = 1.4 * metrics.height() if self.orientation == "left" else metrics.horizontalAdvance("000000")
        spacing = max(super().tickSpacing(minVal, maxVal, size)[0][0], 1.0 if self._whole else 0.0)
        while spacing / (maxVal - minVal) * size < min(room, size / 2):
            spacing *= 2.5 if f"{spacing:e}"[0] == "2" else 2  # 1, 2, 5, 10, …
        return [(spacing, 0.0)]

    def boundingRect(self) -> QRectF:
        """With room for the half of a label that stands out at either end; without it the 0 is not drawn."""
        out = QFontMetrics(self.style["tickFont"] or QFont()).height()
        rect = super().boundingRect()
        return rect.adjusted(0, -out, 0, out) if self.orientation == "left" else rect.adjusted(-out, 0, out, 0)


class Canvas(pg.PlotWidget):
    """A plot without anything in it. `hovered` tells where the mouse is, in scene coordinates; None: elsewhere."""

    hovered = Signal(object)
    _axes: tuple[Axis, ...] = ()  # events come while pyqtgraph is still building its part

    def __init__(self, x: Quantity, y: Quantity) -> None:
        axes = {"bottom": Axis("bottom", x), "left": Axis("left", y)}
        super().__init__(axisItems=axes, enableMenu=False)
        self._axes = tuple(axes.values())
        self.hideButtons()
        self.disableAutoRange()
        self.setLimits(minXRange=1e-3, minYRange=1e-9, maxXRange=1e9, maxYRange=1e9)
        self.scene().sigMouseMoved.connect(self._on_mouse)
        self.restyle()

    def restyle(self) -> None:
        """Take the colours and the font anew."""
        palette = self.palette()
        base, text = palette.color(QPalette.ColorRole.Base), palette.color(QPalette.ColorRole.Text)
        self.setBackground(base)
        metrics = self.fontMetrics()
        for axis in self._axes:
            axis.setPen(mixed(text, base, 0.45))
            axis.setTextPen(mixed(text, base, 0.8))
            axis.setTickPen(mixed(text, base, 0.6))
            axis.setGrid(70)
            axis.label.setFont(self.font())
            axis.setTickFont(self.font())
        # Fixed, so that the curves do not jump whenever a tick label gets longer, and plots below each other align.
        bottom, left = self._axes
        bottom.setHeight(round(2.3 * metrics.height()))
        left.setWidth(round(metrics.horizontalAdvance("00000.0") + 1.5 * metrics.height()))
        self.getPlotItem().layout.setContentsMargins(0, metrics.height() // 2, metrics.height(), 0)

    def changeEvent(self, event: QEvent) -> None:
        """Follow the palette and the font."""
        super().changeEvent(event)
        if self._axes and event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange):
            self.restyle()

    def leaveEvent(self, event: QEvent) -> None:
        """The mouse is elsewhere."""
        super().leaveEvent(event)
        self.hovered.emit(None)

    def _on_mouse(self, position: QPointF) -> None:
        inside = self.getViewBox().sceneBoundingRect().contains(position)
        self.hovered.emit(position if inside else None)


def mixed(color: QColor, ground: QColor, share: float) -> QColor:
    """`color` thinned with the ground it stands on. Opaque: transparent pens are slow."""
    parts = zip(color.getRgbF()[:3], ground.getRgbF()[:3], strict=True)
    return QColor.fromRgbF(*(share * ink + (1 - share) * paper for ink, paper in parts))
