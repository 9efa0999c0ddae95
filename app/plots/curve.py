"""One method in one plot: its line, the marks on it and the dashed line at its peak."""

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen

from app.plots.series import Bounds, Series

SMOOTH = 300  # up to so many points in view a line is antialiased; beyond, it may be a band of noise: 10 times slower
DOTTED = 30  # up to so many points in view each has a dot: a single step would not be seen otherwise
MARK_PIXELS = 10  # marks keep about this distance


class Curve:
    """The graphics items of one method. `points` and `marks` are what they show; `draw` brings it on the screen."""

    def __init__(self, plot: pg.PlotItem, width: float) -> None:
        self.points, self.marks = Series(), Series()
        self.peak: float | None = None
        self._width = width
        self._line = pg.PlotCurveItem(connect="finite", skipFiniteCheck=True)
        self._dots = pg.ScatterPlotItem(size=width + 4, pen=None, pxMode=True)
        self._diamonds = pg.ScatterPlotItem(size=8, symbol="d", pxMode=True)
        self._peak_line = pg.InfiniteLine(angle=0)
        self._peak_line.hide()
        for height, item in enumerate((self._line, self._dots, self._peak_line, self._diamonds)):
            item.setZValue(height)  # so that no method's line covers another one's peak or marks
            plot.addItem(item, ignoreBounds=True)

    @property
    def bounds(self) -> Bounds | None:
        """What has to be in view for all of it to be seen."""
        bounds = [series.bounds for series in (self.points, self.marks) if series.bounds is not None]
        if not bounds:
            return None
        whole = bounds[0].united(bounds[-1])
        return whole if self.peak is None else whole._replace(high=max(whole.high, self.peak))

    @property
    def peak_line(self) -> pg.InfiniteLine:
        """The dashed line; hidden until there is a peak."""
        return self._peak_line

    def shown(self) -> int:
        """How many vertices the line has on the screen."""
        return 0 if self._line.xData is None else len(self._line.xData)

    def clear(self) -> None:
        """Forget all points, marks and the peak."""
        self.points, self.marks, self.peak = Series(), Series(), None
        self._diamonds.setData([], [])
        self._peak_line.hide()

    def raise_peak(self, value: float) -> None:
        """Note a value the dashed line must not lie below."""
        self.peak = value if self.peak is None else max(self.peak, value)

    def restyle(self, color: QColor, ground: QColor, ratio: float) -> None:
        """Draw in this colour on this ground, with `ratio` pixels of the device to one of the window's."""
        self._line.setPen(_pen(color, self._width * ratio))
        self._dots.setBrush(color)
        self._diamonds.setBrush(color)
        self._diamonds.setPen(_pen(ground, 1))  # an edge in the ground's colour parts a mark from the line it lies on
        self._peak_line.setPen(_pen(color, ratio, Qt.PenStyle.DashLine))

    def draw(self, left: float, right: float, columns: int) -> None:
        """Show what lies between left and right on so many columns of pixels."""
        x, y = self.points.outline(left, right, columns)
        self._line.setData(x, y, antialias=len(x) <= min(SMOOTH, columns))
        dotted = np.isfinite(y) & (len(x) <= DOTTED)
        if dotted.any() or self._dots.data.size:
            self._dots.setData(x[dotted], y[dotted])
        if len(self.marks):
            self._diamonds.setData(*self.marks.peaks(left, right, max(1, columns // MARK_PIXELS)))
        if self.peak is not None:
            self._peak_line.setValue(self.peak)
            self._peak_line.show()


def _pen(color: QColor, width: float, style: Qt.PenStyle = Qt.PenStyle.SolidLine) -> QPen:
    pen = QPen(color, width, style, Qt.PenCapStyle.RoundCap)  # round, so that segments drawn one by one join smoothly
    pen.setCosmetic(True)  # its width is in pixels of the device, not in steps or MB
    return pen
