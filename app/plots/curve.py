"""One method in one plot: its line, the marks on it and the dashed line at its peak."""

import math
from functools import reduce

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen

from app.plots.series import Bounds, Series

SMOOTH = 300  # up to so many points in view a line is antialiased; beyond, it may be a band of noise: 10 times slower
DOTTED = 30  # up to so many points in view each has a dot: a single step would not be seen otherwise
MARK_PIXELS = 10  # marks keep about this distance
BEYOND = 1000  # heights or widths of the view outside of it, at which whatever lies further out is drawn
THIN = 1.5  # width of a line that hides no other
RIM, RIMS = 2.0, 8.0  # what a line stands out below the one that covers it, both sides together; and all of them at most


def nested_widths(count: int) -> list[float]:
    """Widths of lines drawn one over the other, in this order, so that all are seen where they coincide.

    Each is wider than the next by a pixel on either side, which is seen wherever the line lies between the pixels. From
    six lines on it is a bit less, seen at most places, so that the first one does not hide the course of the curve.
    """
    rim = min(RIM, RIMS / max(1, count - 1))
    return [THIN + rim * behind for behind in reversed(range(count))]


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
        if self.peak is not None:
            left = bounds[0].left if bounds else 0.0  # a line across the whole plot is seen wherever the view is
            bounds.append(Bounds(left, left, self.peak, self.peak))
        return reduce(Bounds.united, bounds) if bounds else None

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
        """Note a value the dashed line must not lie below; one that is no finite number is passed over."""
        if math.isfinite(value):
            self.peak = value if self.peak is None else max(self.peak, value)

    def restyle(self, color: QColor, ground: QColor, ratio: float) -> None:
        """Draw in this colour on this ground, with `ratio` pixels of the device to one of the window's."""
        self._line.setPen(_pen(color, self._width * ratio))
        self._dots.setBrush(color)
        self._diamonds.setBrush(color)
        self._diamonds.setPen(_pen(ground, 1))  # an edge in the ground's colour parts a mark from the line it lies on
        self._peak_line.setPen(_pen(color, ratio, Qt.PenStyle.DashLine))

    def draw(self, view: Bounds, columns: int) -> None:
        """Show what lies in the view on so many columns of pixels."""
        x, y = _within(view, *self.points.outline(view.left, view.right, columns))
        self._line.setData(x, y, antialias=len(x) <= min(SMOOTH, columns))
        dotted = np.isfinite(y) & (len(x) <= DOTTED)
        if dotted.any() or self._dots.data.size:
            self._dots.setData(x[dotted], y[dotted])
        if len(self.marks):
            x, y = _within(view, *self.marks.peaks(view.left, view.right, max(1, columns // MARK_PIXELS)))
            found = np.isfinite(y)
            self._diamonds.setData(x[found], y[found])
        if self.peak is not None:
            self._peak_line.setValue(float(_near(self.peak, view.low, view.high)))
            self._peak_line.show()


def _within(view: Bounds, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points (n,), (n,), those far outside of the view brought nearer: Qt draws nothing at 1e300 pixels."""
    return _near(x, view.left, view.right), _near(y, view.low, view.high)


def _near(values: np.ndarray | float, low: float, high: float) -> np.ndarray | float:
    room = BEYOND * (high - low)
    return np.clip(values, low - room, high + room)


def _pen(color: QColor, width: float, style: Qt.PenStyle = Qt.PenStyle.SolidLine) -> QPen:
    pen = QPen(color, width, style, Qt.PenCapStyle.RoundCap)  # round, so that segments drawn one by one join smoothly
    pen.setCosmetic(True)  # its width is in pixels of the device, not in steps or MB
    return pen
