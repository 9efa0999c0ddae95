"""One live plot: all methods over each other, in view as a whole until somebody zooms or drags."""

from collections.abc import Sequence
from functools import reduce

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QColor, QPainter, QPalette, QPen, QRegion
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from app.plots.canvas import FAR, Canvas
from app.plots.curve import THIN, Curve, nested_widths
from app.plots.legend import Legend
from app.plots.quantity import Quantity
from app.plots.series import Bounds
from app.widgets.theme import method_color, mixed

NOTHING = Bounds(0.0, 10.0, 0.0, 1.0)  # what an empty plot shows
CLOSEST = 1e-4  # room left by itself at a curve, as a share of its values: noise of the last digits is not blown up


class LivePlot(QWidget):
    """Curves of y against x, one a method. `add…` only notes; `draw` brings it on the screen.

    While `following`, every draw brings all points into view. Zooming or dragging ends that, and then a draw leaves
    the view alone until Follow is pressed.
    """

    def __init__(
        self,
        title: str,
        x: Quantity,
        y: Quantity,
        hint: str = "",
        nested: bool = False,
        mark_name: str = "",
        lines: int = 5,
        above: "LivePlot | None" = None,
    ) -> None:
        """`hint` is shown while there is nothing else; `mark_name` says what a mark is; `lines` as in `Canvas`.

        `nested`: every curve is a bit narrower than the one below it, so that curves that coincide are all seen.
        `above`: the plot this one is placed under. Both then have that one's title, legend and Follow, and one x axis.
        """
        super().__init__()
        self.x, self.y, self._nested, self.mark_name = x, y, nested, mark_name
        self.curves: dict[str, Curve] = {}
        self._ended: set[str] = set()
        self._mouse: QPointF | None = None
        self._stack: list[LivePlot] = above._stack if above else []
        self._stack.append(self)
        self._top = self._stack[0]
        if above:
            self.title, self.legend, self.follow = above.title, above.legend, above.follow
            above.canvas.hide_x()
        else:
            self.title, self.legend = _plain(QLabel(title), "title"), Legend()
            self.follow = QToolButton(text="Follow", checkable=True, checked=True, autoRaise=True, objectName="follow")
            self.follow.setAccessibleName(f"Follow {title}")
            self.follow.setToolTip("Keep all points in view. Zooming or dragging the plot ends this; press to return.")
        self.follow.toggled.connect(lambda on: self.draw() if on else None)
        self.canvas = Canvas(x, y, lines)
        self.canvas.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # it has no keys; Tab goes on to Follow
        self.canvas.setAccessibleName(title)
        self._view = self.canvas.getViewBox()
        self._view.sigRangeChangedManually.connect(lambda _: self._on_moved())
        self._view.sigRangeChanged.connect(lambda *_: self._draw_curves())
        self._view.sigResized.connect(lambda *_: self._on_resize())
        self.canvas.hovered.connect(self._on_hover)
        self._cursor = pg.InfiniteLine(angle=90)
        self._cursor.setZValue(10)
        self._cursor.hide()
        self.canvas.addItem(self._cursor, ignoreBounds=True)
        self.readout = _plain(QLabel(self, frameShape=QFrame.Shape.StyledPanel, autoFillBackground=True), "readout")
        self.readout.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.readout.hide()
        self.hint = _plain(QLabel(hint, self.canvas, alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True), "hint")
        self.hint.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._lay_out()
        self.begin(())

    @property
    def following(self) -> bool:
        """Whether all points are kept in view."""
        return self.follow.isChecked()

    def begin(self, methods: Sequence[str], signs: Sequence[tuple[str, str]] = ()) -> None:
        """Forget everything, in the plots above and below too, and make room for these methods.

        `signs` as in `Legend.begin`.
        """
        methods = tuple(methods)
        for plot in self._stack:  # all of them, before one is drawn: their x is that of all curves
            plot._begin_curves(methods)
        self.legend.begin(methods, self._color, signs)
        self.follow.setChecked(True)
        for plot in self._stack:
            plot.draw()

    def end(self, method: str) -> None:
        """Nothing more will come of this method: its value of now is one no longer."""
        self._ended.add(method)

    def add(self, method: str, x: float, y: float) -> None:
        """A point of the method's line."""
        self.curves[method].points.add(x, y)

    def add_mark(self, method: str, x: float, y: float) -> None:
        """A mark beside the line."""
        self.curves[method].marks.add(x, y)

    def raise_peak(self, method: str, y: float) -> None:
        """The method's dashed line lies at the highest of these."""
        self.curves[method].raise_peak(y)

    def draw(self) -> None:
        """Bring what was added on the screen."""
        if self.following:
            self._view.setRange(xRange=self._x_range(), yRange=self._y_range(), padding=0, disableAutoRange=False)
        self._draw_curves()
        if self is self._top:
            for method in self.curves:
                self.legend.show_value(method, *self._legend_values(method))
        self.hint.setVisible(not any(curve.bounds for curve in self.curves.values()))

    def value(self, method: str) -> str:
        """What the legend says of the method now."""
        curve = self.curves[method]
        if curve.peak is None:
            return self.y.text(curve.points.last)
        peak = self._peak(method)
        return peak if method in self._ended else f"now {self.y.number(curve.points.last)} · {peak}"

    def paint(self, painter: QPainter, origin: QPointF) -> None:
        """Paint title, legend and plot, without what is only of use on a screen."""
        hidden = [item for item in (self.readout, self._cursor) if item.isVisible()]
        for item in hidden:
            item.hide()
        self._restyle_curves(painter.device().devicePixelRatioF())
        for widget in (self.title, self.legend, self.canvas) if self is self._top else (self.canvas,):
            place = (origin + QPointF(widget.pos())).toPoint()
            QWidget.render(widget, painter, place, QRegion(), QWidget.RenderFlag.DrawChildren)
        self._restyle_curves(self.devicePixelRatioF())
        for item in hidden:
            item.show()

    def changeEvent(self, event: QEvent) -> None:
        """Follow the palette and the font."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange):
            self._restyle()

    def event(self, event: QEvent) -> bool:
        """Follow the screen: lines are as wide on one with more pixels."""
        if event.type() == QEvent.Type.DevicePixelRatioChange:
            self._restyle_curves(self.devicePixelRatioF())
        return super().event(event)

    # the legend

    def _legend_values(self, method: str) -> tuple[str, str]:
        """The values of all plots that share the legend, and what is said where they are too long."""
        values = [plot.value(method) for plot in self._stack]
        short = values[0] if self.curves[method].peak is None else self._peak(method)
        return (" · ".join(values) if set(values) != {"–"} else "–"), short

    def _peak(self, method: str) -> str:
        return f"peak {self.y.text(self.curves[method].peak)}"

    # the view

    def _bounds(self, *plots: "LivePlot") -> Bounds:
        found = [curve.bounds for plot in plots for curve in plot.curves.values() if curve.bounds is not None]
        return Bounds(*(min(max(side, -FAR), FAR) for side in reduce(Bounds.united, found))) if found else NOTHING

    def _x_range(self) -> tuple[float, float]:
        bounds = self._bounds(*self._stack)
        left, right = (0.0, bounds.right) if self.x.from_zero else (bounds.left, bounds.right)
        room = 0.02 * (right - left) or 0.5
        return left if self.x.from_zero else left - room, right + room

    def _y_range(self) -> tuple[float, float]:
        bounds = self._bounds(self)
        low = min(0.0, bounds.low) if self.y.from_zero else bounds.low
        room = 0.06 * (bounds.high - low) or 0.05 * abs(low) or 0.5
        room = max(room, CLOSEST * max(abs(low), abs(bounds.high)))
        return low if self.y.from_zero and low == 0 else low - room, bounds.high + room

    def _draw_curves(self) -> None:
        self._view.updateMatrix()  # now: pyqtgraph does it while painting, and then has to paint once more
        (left, right), (low, high) = self._view.viewRange()
        columns = max(1, round(self._view.width()))
        for curve in self.curves.values():
            curve.draw(Bounds(left, right, low, high), columns)
        self._read_out()

    def _on_moved(self) -> None:
        """Somebody zoomed or dragged: the plots above and below go with it, so that steps stay below each other."""
        self.follow.setChecked(False)
        for plot in self._stack:
            if plot is not self:
                plot._view.setXRange(*self._view.viewRange()[0], padding=0)

    def _on_resize(self) -> None:
        self.hint.setGeometry(self._view.sceneBoundingRect().toRect())
        self._draw_curves()

    # the cursor

    def _on_hover(self, position: QPointF | None) -> None:
        self._mouse = position
        self._read_out()

    def _read_out(self) -> None:
        """The values under the mouse; also called when it rests, because what lies under it may have changed."""
        values: dict[str, float] = {}
        if self._mouse is not None:
            x = self._view.mapSceneToView(self._mouse).x()
            values = {method: near for method, curve in self.curves.items() if (near := self._near(curve, x)) is not None}
        self._cursor.setVisible(bool(values))
        self.readout.setVisible(bool(values))
        if not values:
            return
        self._cursor.setValue(x)
        at = self.x.text(next(iter(values.values())) if self.x.whole else x)
        self.readout.setText("\n".join([f"{self.x.name} {at}", *(self._reading(method, x) for method in values)]))
        self._place_readout()

    def _place_readout(self) -> None:
        """Right above the mouse, or where there is room; over the whole window, as a small plot has none for many lines."""
        window, readout = self.window(), self.readout
        if readout.parentWidget() is not window:
            readout.setParent(window)
            readout.show()
        readout.adjustSize()
        room = self.fontMetrics().averageCharWidth()
        mouse = self.canvas.mapTo(window, self._mouse.toPoint())
        beside = mouse.x() + room
        if beside + readout.width() > window.width():
            beside = max(0, mouse.x() - room - readout.width())
        above = min(mouse.y() - readout.height() - room, window.height() - readout.height())
        readout.move(beside, max(0, above))
        readout.raise_()

    def _near(self, curve: Curve, x: float) -> float | None:
        """The x of the point to read at x; None where the method has no points, before its first and after its last."""
        point = curve.points.nearest(x)
        if point is None:
            return None
        left, right = self._view.viewRange()[0]
        first, last = curve.points.x[0], curve.points.x[-1]
        reach = 0.02 * (right - left)
        return point[0] if first - reach <= x <= last + reach else None

    def _reading(self, method: str, x: float) -> str:
        curve = self.curves[method]
        line = f"{method}: {self.y.text(curve.points.nearest(x)[1])}"
        mark = curve.marks.nearest(x)
        return line if mark is None else f"{line}, {self.mark_name} {self.y.text(mark[1])}"

    # looks

    def _begin_curves(self, methods: tuple[str, ...]) -> None:
        self._ended.clear()
        if methods and methods == tuple(self.curves):  # the usual case, and many times faster
            for curve in self.curves.values():
                curve.clear()
            return
        self.canvas.clear()
        self.canvas.addItem(self._cursor, ignoreBounds=True)
        self._color = lambda method: method_color(method, methods)
        plot = self.canvas.getPlotItem()
        widths = nested_widths(len(methods)) if self._nested else [THIN] * len(methods)
        self.curves = {method: Curve(plot, width) for method, width in zip(methods, widths, strict=True)}
        self._restyle()

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        margin = self.fontMetrics().averageCharWidth()
        column.setContentsMargins(margin, 0, margin, 0)
        column.setSpacing(0)
        if self is self._top:
            header = QHBoxLayout()
            header.setSpacing(margin)
            header.addWidget(self.title, 1)
            header.addWidget(self.follow)
            column.addLayout(header)
            column.addWidget(self.legend)
        column.addWidget(self.canvas, 1)

    def _restyle(self) -> None:
        palette = self.palette()
        text, base = palette.color(QPalette.ColorRole.Text), palette.color(QPalette.ColorRole.Base)
        font = self.font()
        font.setBold(True)
        self.title.setFont(font)
        self._restyle_curves(self.devicePixelRatioF())
        self.legend.recolor()
        self._cursor.setPen(_hairline(mixed(text, base, 0.6)))
        faint = QPalette(palette)
        faint.setColor(QPalette.ColorRole.WindowText, mixed(text, base, 0.65))
        self.hint.setPalette(faint)

    def _restyle_curves(self, ratio: float) -> None:
        for method, curve in self.curves.items():
            curve.restyle(self._color(method), self.palette().color(QPalette.ColorRole.Base), ratio)


def _plain(label: QLabel, name: str) -> QLabel:
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setObjectName(name)
    return label


def _hairline(color: QColor) -> QPen:
    pen = QPen(color, 1)
    pen.setCosmetic(True)
    return pen
