"""The strip across the top: what the worker holds of the machine's memory, how hot it is, what the battery does."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QWidget

from app.device.monitor import DeviceMonitor, DeviceState
from app.widgets.theme import level_color
from mesp_core.machine.device import UNKNOWN
from mesp_core.machine.memory import MB
from mesp_core.runs import events

ORANGE_FROM, RED_FROM = 0.50, 0.75  # share of the machine's memory


def level_of(share: float) -> str:
    """good, warning or bad."""
    return "good" if share < ORANGE_FROM else "warning" if share < RED_FROM else "bad"


class MemoryBar(QWidget):
    """A bar for the share of the machine's memory, with a tick at the peak."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("memory_bar")
        self.setAccessibleName("Worker's share of the machine's memory")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.share, self.peak = 0.0, 0.0

    @property
    def level(self) -> str:
        """good, warning or bad."""
        return level_of(self.share)

    def set_shares(self, share: float, peak: float) -> None:
        """Both 0 to 1."""
        self.share, self.peak = share, peak
        self.update()

    def sizeHint(self) -> QSize:
        """As high as a line of text is."""
        return QSize(160, round(0.9 * self.fontMetrics().height()))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Trough, filling, peak."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        area = QRectF(self.rect())
        trough = self.palette().color(QPalette.ColorRole.WindowText)
        trough.setAlphaF(0.15)  # seen on a light ground and on a dark one
        painter.setBrush(trough)
        painter.drawRoundedRect(area, 3, 3)
        if self.share > 0:
            filled = QRectF(area)
            filled.setWidth(max(2.0, area.width() * min(1.0, self.share)))
            painter.setBrush(level_color(self.level))
            painter.drawRoundedRect(filled, min(3, filled.width() / 2), 3)
        if self.peak > 0:
            painter.setBrush(self.palette().color(QPalette.ColorRole.WindowText))
            painter.drawRect(QRectF(area.left() + (area.width() - 2) * min(1.0, self.peak), area.top(), 2, area.height()))


class DeviceStrip(QFrame):
    """Footprint of the running workers (never the app's own), peak, thermal state, battery."""

    def __init__(self, monitor: DeviceMonitor, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("device_strip")
        self._monitor = monitor
        self._now: dict[str, float] = {}  # method -> MB, of the workers that live
        self._peak_mb = 0.0
        self._marked = False
        self._bar = MemoryBar()
        self._memory = _label("footprint", "What the operating system says the worker process holds; the app is not in it")
        self._thermal = _label("thermal", "How hot the system says the machine is; a hot machine computes more slowly")
        self._battery = _label("battery", "Battery level, and what the run has used of it")
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 4, 8, 4)
        row.setSpacing(2 * self.fontMetrics().averageCharWidth())
        row.addWidget(QLabel("Worker memory"))
        row.addWidget(self._bar, 1)
        row.addWidget(self._memory)
        row.addStretch(1)
        row.addWidget(self._thermal)
        row.addWidget(self._battery)
        monitor.changed.connect(self._show_device)
        self._show_memory()

    def begin(self) -> None:
        """A run begins: peaks and the device's worst count from now."""
        self._now.clear()
        self._peak_mb, self._marked = 0.0, True
        self._monitor.mark()
        self._show_memory()

    def add_memory(self, memory: events.Memory) -> None:
        """A worker's footprint."""
        self._now[memory.method] = memory.footprint_mb
        # Interleaved methods are in memory at once, so it is their sum that the machine must bear.
        self._peak_mb = max(self._peak_mb, sum(self._now.values()))
        self._show_memory()

    def add_step(self, step: events.Step) -> None:
        """A step's exact peak, which may lie between two samples."""
        if step.footprint_peak_mb is not None:
            others = sum(mb for method, mb in self._now.items() if method != step.method)
            self._peak_mb = max(self._peak_mb, others + step.footprint_peak_mb)
            self._show_memory()

    def end_method(self, method: str) -> None:
        """A worker is gone."""
        self._now.pop(method, None)
        self._show_memory()

    def end(self) -> None:
        """The run is over."""
        self._now.clear()
        self._monitor.unmark()
        self._show_memory()

    def _show_memory(self) -> None:
        state = self._monitor.state
        total_mb = state.memory_bytes / MB if state else 0.0
        now_mb = sum(self._now.values())
        if total_mb:
            self._bar.set_shares(now_mb / total_mb, self._peak_mb / total_mb)
        now = f"{now_mb:,.0f} MB" if self._now else "no worker"
        peak = f", peak {self._peak_mb:,.0f} MB" if self._peak_mb else ""
        of = f" of {total_mb / 1024:,.0f} GB" if total_mb else ""
        self._memory.setText(f"{now}{peak}{of}")

    def _show_device(self, state: DeviceState) -> None:
        worst = self._monitor.worst_thermal
        hottest = f" (worst {worst})" if self._marked and worst not in (state.thermal, UNKNOWN) else ""
        self._thermal.setText(f"Thermal: {state.thermal}{hottest}")
        self._battery.setText(f"Battery: {self._battery_text(state)}")
        self._show_memory()

    def _battery_text(self, state: DeviceState) -> str:
        if state.battery_percent is None:
            return "none"
        text = f"{state.battery_percent:.0f} %"
        if state.plugged is not None:
            text += ", plugged in" if state.plugged else ", on battery"
        used = self._monitor.battery_used
        if self._marked and used is not None:
            text += f", run used {max(0.0, used):.0f} %"
        return text


def _label(name: str, tip: str) -> QLabel:
    return QLabel(objectName=name, toolTip=tip, textFormat=Qt.TextFormat.PlainText)
