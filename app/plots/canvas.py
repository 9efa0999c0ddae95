"""The ground curves are drawn on: two axes with labels and a grid, in the palette's colours and the widget's font."""

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QSize, Signal
from PySide6.QtGui import QPalette

from app.plots.axis import Axis
from app.plots.quantity import Quantity
from app.widgets.theme import mixed

FAR = 1e12  # no view goes beyond ±FAR: Qt takes a scale below 1e-12 pixels to one for 0, and draws nothing

OVER = 0.4  # lines of text above and below a plot: half a tick label, as high as its digits


class Canvas(pg.PlotWidget):
    """A plot without anything in it. `hovered` tells where the mouse is, in scene coordinates; None: elsewhere."""

    hovered = Signal(object)
    _axes: tuple[Axis, ...] = ()  # events come while pyqtgraph is still building its part

    def __init__(self, x: Quantity, y: Quantity, lines: int) -> None:
        """`lines`: so many lines of text high is the smallest plot in which the curves can be told apart."""
        axes = {"bottom": Axis("bottom", x), "left": Axis("left", y)}
        super().__init__(axisItems=axes, enableMenu=False)
        self._axes, self._lines, self._x_hidden = tuple(axes.values()), lines, False
        self.hideButtons()
        self.disableAutoRange()
        self.setLimits(minXRange=1e-3, minYRange=1e-9, maxXRange=3 * FAR, maxYRange=3 * FAR)
        self.setLimits(xMin=-2 * FAR, xMax=2 * FAR, yMin=-2 * FAR, yMax=2 * FAR)
        self.restyle()
        self.scene().sigMouseMoved.connect(self._on_mouse)

    def minimumSizeHint(self) -> QSize:
        """Room for the axes and a few lines and columns of text between them."""
        metrics = self.fontMetrics()
        bottom, left = self._axes
        width = left.minimumWidth() + 12 * metrics.averageCharWidth() + bottom.overhang()
        return QSize(round(width), round(bottom.minimumHeight() + (self._lines + OVER) * metrics.height()))

    def hide_x(self) -> None:
        """Leave the labels of the x axis to the plot below."""
        self._x_hidden = True
        self._axes[0].hide_values()
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
            axis.take_font(self.font())
        # Fixed, so that the curves do not jump whenever a tick label gets longer, and plots below each other align.
        bottom, left = self._axes
        bottom.setHeight(round((OVER if self._x_hidden else 2.3) * metrics.height()))
        left.setWidth(round(metrics.horizontalAdvance("00000.0") + 1.6 * metrics.height()))
        self.getPlotItem().layout.setContentsMargins(0, round(OVER * metrics.height()), bottom.overhang(), 0)
        self.updateGeometry()

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
