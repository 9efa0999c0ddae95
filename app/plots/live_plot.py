"""One live plot: all methods over each other, in view as a whole until somebody zooms or drags."""

from collections.abc import Sequence
from functools import reduce

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QColor, QPainter, QPalette, QPen, QRegion
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from app.plots.canvas import Canvas, mixed
from app.plots.curve import Curve
from app.plots.legend import Legend
from app.plots.quantity import Quantity
from app.plots.series import Bounds
from app.theme import method_color

NOTHING = Bounds(0.0, 10.0, 0.0, 1.0)  # what an empty plot shows


class LivePlot(QWidget):
    """Curves of y against x, one a method. `add…` only notes; `draw` brings it on the screen.

    While `following`, every draw brings all points into view. Zooming or dragging ends that, and then a draw leaves
    the view alone until Follow is pressed.
    """

    def __init__(
        self, title: str, x: Quantity, y: Quantity, hint: str = "", nested: bool = False, mark_name: str = ""
    ) -> None:
        """`hint` is shown while there is nothing else; `mark_name` says what a mark is.

        `nested`: every curve is a bit narrower than the one below it, so that curves that coincide are all seen.
        """
        super().__init__()
        self.x, self.y, self._nested, self.mark_name = x, y, nested, mark_name
        self.curves: dict[str, Curve] = {}
        self._mouse: QPointF | None = None
        self.title = _plain(QLabel(title), "title")
        self.legend = Legend()
        self.follow = QToolButton(text="Follow", checkable=True, checked=True, autoRaise=True, objectName="follow")
        self.follow.setAccessibleName(f"Follow {title}")
        self.follow.setToolTip("Keep all points in view. Zooming or dragging the plot ends this; press to return.")
        self.follow.toggled.connect(lambda on: self.draw() if on else None)
        self.canvas = Canvas(x, y)
        self.canvas.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # it has no keys; Tab goes on to Follow
        self.canvas.setAccessibleName(title)
        self._view = self.canvas.getViewBox()
        self._view.sigRangeChangedManually.connect(lambda _: self.follow.setChecked(False))
        self._view.sigRangeChanged.connect(lambda *_: self._draw_curves())
        self._view.sigResized.connect(lambda *_: self._on_resize())
        self.canvas.hovered.connect(self._on_hover)
        self._cursor = pg.InfiniteLine(angle=90)
        self._cursor.setZValue(10)
        self._cursor.hide()
        self.canvas.addItem(self._cursor, ignoreBounds=True)
        self.readout = _plain(QLabel(self.canvas, frameShape=QFrame.Shape.StyledPanel, autoFillBackground=True), "readout")
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
        """Forget everything and make room for these methods; `signs` as in `Legend.begin`."""
        if methods and tuple(methods) == tuple(self.curves):  # the usual case, and many times faster
            for curve in self.curves.values():
                curve.clear()
            self.follow.setChecked(True)
            self.draw()
            return
        self.canvas.clear()
        self.canvas.addItem(self._cursor, ignoreBounds=True)
        methods = tuple(methods)
        self._color = lambda method: method_color(method, methods)
        widths = [1.5 + 2 * min(2, behind) if self._nested else 1.5 for behind in reversed(range(len(methods)))]
        plot = self.canvas.getPlotItem()
        self.curves = {method: Curve(plot, width) for method, width in zip(methods, widths, strict=True)}
        self.legend.begin(methods, self._color, signs)
        self.follow.setChecked(True)
        self._restyle()
        self.draw()

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
        for method in self.curves:
            self.legend.show_value(method, self.value(method))
        self.hint.setVisible(not any(curve.bounds for curve in self.curves.values()))

    def value(self, method: str) -> str:
        """What the legend says of the method now."""
        curve = self.curves[method]
        now = self.y.text(curve.points.last)
        if curve.peak is None:
            return now
        return f"now {self.y.number(curve.points.last)} · peak {self.y.text(curve.peak)}"

    def paint(self, painter: QPainter, origin: QPointF) -> None:
        """Paint title, legend and plot, without what is only of use on a screen."""
        hidden = [item for item in (self.readout, self._cursor) if item.isVisible()]
        for item in hidden:
            item.hide()
        self._restyle_curves(painter.device().devicePixelRatioF())
        for widget in (self.title, self.legend, self.canvas):
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

    # the view

    def _bounds(self) -> Bounds:
        bounds = [curve.bounds for curve in self.curves.values() if curve.bounds is not None]
        return reduce(Bounds.united, bounds) if bounds else NOTHING

    def _x_range(self) -> tuple[float, float]:
        bounds = self._bounds()
        left, right = (0.0, bounds.right) if self.x.from_zero else (bounds.left, bounds.right)
        room = 0.02 * (right - left) or 0.5
        return left if self.x.from_zero else left - room, right + room

    def _y_range(self) -> tuple[float, float]:
        bounds = self._bounds()
        low = min(0.0, bounds.low) if self.y.from_zero else bounds.low
        room = 0.06 * (bounds.high - low) or 0.05 * abs(low) or 0.5
        return low if self.y.from_zero else low - room, bounds.high + room

    def _draw_curves(self) -> None:
        self._view.updateMatrix()  # now: pyqtgraph does it while painting, and then has to paint once more
        left, right = self._view.viewRange()[0]
        columns = max(1, round(self._view.width()))
        for curve in self.curves.values():
            curve.draw(left, right, columns)
        self._read_out()

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
        self.readout.adjustSize()
        room = self.fontMetrics().averageCharWidth()
        beside = round(self._mouse.x()) + room
        if beside + self.readout.width() > self.canvas.width():
            beside = max(0, round(self._mouse.x()) - room - self.readout.width())
        above = round(self._mouse.y()) - self.readout.height() - room
        self.readout.move(beside, max(0, above))

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

    def _lay_out(self) -> None:
        header = QHBoxLayout()
        header.addWidget(self.title, 1)
        header.addWidget(self.follow)
        column = QVBoxLayout(self)
        margin = self.fontMetrics().averageCharWidth()
        column.setContentsMargins(margin, 0, margin, 0)
        column.setSpacing(0)
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
