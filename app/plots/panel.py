"""The three plots of a comparison: loss and step time against step, memory against time."""

from collections.abc import Sequence

from PySide6.QtCore import QBuffer, QIODevice, QPointF, QSize, Qt
from PySide6.QtGui import QImage, QPainter, QPalette
from PySide6.QtWidgets import QHBoxLayout, QSplitter, QWidget

from app.plots.legend import DASHES, DIAMOND
from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity
from app.widgets.throttle import Throttle
from mesp_core.runs import events

HINT = "Press Run to compare the ticked methods"
SCALE = 2  # of the picture that is exported
MARK = "allocator peak"
SIGNS = ((DIAMOND, f"{MARK} of a step"), (DASHES, "footprint peak"))


class PlotPanel(QWidget):
    """`begin`, then steps and memory samples as they come; redrawn at most 20 times a second."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("plots")
        self.setAutoFillBackground(True)
        self.setBackgroundRole(QPalette.ColorRole.Base)  # the ground of the plots, so that header and plot are one
        step, time = Quantity("step", whole=True), Quantity("time", "s", 1, from_zero=True)
        loss = Quantity("loss", "nats per token", 4, short_unit="nats/token")
        step_time, memory = Quantity("step time", "s", 3, from_zero=True), Quantity("memory", "MB", 1, from_zero=True)
        self.loss = LivePlot("Loss and step time", step, loss, HINT, nested=True, lines=4)
        self.step_time = LivePlot("Step time", step, step_time, lines=3, above=self.loss)
        self.memory = LivePlot("Memory", time, memory, mark_name=MARK, lines=6)
        self._plots = {"loss": self.loss, "step-time": self.step_time, "memory": self.memory}
        for name, plot in self._plots.items():
            plot.setObjectName(name)
        self._clock: dict[str, float] = {}  # method -> the time of its last memory sample
        self._throttle = Throttle(self.draw, parent=self)
        self._lay_out()

    @property
    def methods(self) -> tuple[str, ...]:
        """Those there is room for."""
        return tuple(self._clock)

    def begin(self, methods: Sequence[str]) -> None:
        """Forget the last run; these methods will come."""
        self._throttle.cancel()
        self._clock = dict.fromkeys(methods, 0.0)
        self.loss.begin(methods)  # and step_time with it
        self.memory.begin(methods, SIGNS)

    def add_step(self, step: events.Step) -> None:
        """A step of one of the methods, each from its own t = 0."""
        self.loss.add(step.method, step.step, step.loss)
        self.step_time.add(step.method, step.step, step.step_time_s)
        t_s = self._clock[step.method] if step.t_s is None else step.t_s
        self.memory.add_mark(step.method, t_s, step.allocator_peak_mb)
        if step.footprint_peak_mb is not None:
            self.memory.raise_peak(step.method, step.footprint_peak_mb)
        self._throttle.request()

    def add_memory(self, memory: events.Memory) -> None:
        """A footprint sample."""
        self._clock[memory.method] = memory.t_s
        self.memory.add(memory.method, memory.t_s, memory.footprint_mb)
        self.memory.raise_peak(memory.method, memory.footprint_mb)
        self._throttle.request()

    def end_method(self, method: str) -> None:
        """The method's worker is gone: it holds no memory now, only its peak is left to say."""
        self.memory.end(method)
        self._throttle.request()

    def draw(self) -> None:
        """Bring everything that came on the screen."""
        for plot in self._plots.values():
            plot.draw()

    def png(self) -> bytes:
        """The three plots with their legends as they are now, as a PNG of twice the size, on the ground of now."""
        self._throttle.flush()
        image = QImage(self.size() * SCALE, QImage.Format.Format_RGB32)
        image.setDevicePixelRatio(SCALE)
        image.fill(self.palette().color(QPalette.ColorRole.Base))
        painter = QPainter(image)
        for plot in self._plots.values():
            plot.paint(painter, QPointF(plot.mapTo(self, plot.rect().topLeft())))
        painter.end()
        buffer = QBuffer()
        buffer.open(QIODevice.OpenModeFlag.WriteOnly)
        image.save(buffer, "PNG")
        return buffer.data().data()

    def sizeHint(self) -> QSize:
        """Room for three plots, in characters."""
        metrics = self.fontMetrics()
        room = QSize(110 * metrics.averageCharWidth(), 26 * metrics.height())
        return room.expandedTo(self.minimumSizeHint())

    def _lay_out(self) -> None:
        left = _split(Qt.Orientation.Vertical, (self.loss, 2), (self.step_time, 1))
        row = QHBoxLayout(self)
        edge = self.fontMetrics().height() // 4
        row.setContentsMargins(0, edge, 0, edge)
        row.addWidget(_split(Qt.Orientation.Horizontal, (left, 1), (self.memory, 1)))


def _split(orientation: Qt.Orientation, *shares: tuple[QWidget, int]) -> QSplitter:
    """Widgets beside or above each other, with their shares of the room."""
    splitter = QSplitter(orientation)
    splitter.setChildrenCollapsible(False)
    for index, (widget, share) in enumerate(shares):
        splitter.addWidget(widget)
        splitter.setStretchFactor(index, share)
    splitter.setSizes([1000 * share for _, share in shares])
    return splitter
