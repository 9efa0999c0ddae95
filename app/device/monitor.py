"""Watches the machine: thermal state and battery, every few seconds, and the worst of them since a mark."""

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, QTimer, Signal

from mesp_core.machine import device
from mesp_core.machine.memory import machine_memory

EVERY_MS = 5000
HEAT = (device.UNKNOWN, *device.THERMAL_STATES)


@dataclass(frozen=True)
class DeviceState:
    """The machine now. `memory_bytes` is all it has; battery is None where there is none."""

    memory_bytes: int
    thermal: str = device.UNKNOWN
    battery_percent: float | None = None
    plugged: bool | None = None


def read_device() -> DeviceState:
    """The machine as the system describes it now."""
    battery = device.battery()
    return DeviceState(machine_memory()[0], device.thermal_state(), battery.percent, battery.plugged)


class DeviceMonitor(QObject):
    """Emits `changed` with every reading.

    From `mark` to `unmark` it keeps `worst_thermal`, and `battery_used` in percentage points: None where there is no
    battery, negative while it charges.
    """

    changed = Signal(DeviceState)

    def __init__(self, read: Callable[[], DeviceState] = read_device, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._read = read
        self.state: DeviceState | None = None
        self.worst_thermal = device.UNKNOWN
        self.battery_used: float | None = None
        self._counting = False
        self._battery_at_mark: float | None = None
        self._timer = QTimer(self, interval=EVERY_MS)
        self._timer.timeout.connect(self.poll)

    def start(self) -> None:
        """Read now and from then on."""
        self.poll()
        self._timer.start()

    def mark(self) -> None:
        """A run begins."""
        self.worst_thermal, self.battery_used, self._battery_at_mark = device.UNKNOWN, None, None
        self._counting = True
        self.poll()

    def unmark(self) -> None:
        """The run is over: `worst_thermal` and `battery_used` stay what they are now."""
        self.poll()
        self._counting = False

    def poll(self) -> None:
        """Read the machine."""
        self.state = self._read()
        if self._counting:
            self._count(self.state)
        self.changed.emit(self.state)

    def _count(self, state: DeviceState) -> None:
        self.worst_thermal = max(self.worst_thermal, state.thermal, key=_heat)
        if state.battery_percent is not None:
            if self._battery_at_mark is None:
                self._battery_at_mark = state.battery_percent
            self.battery_used = self._battery_at_mark - state.battery_percent


def _heat(thermal: str) -> int:
    return HEAT.index(thermal) if thermal in HEAT else 0
