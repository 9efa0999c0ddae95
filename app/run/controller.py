"""The run controller: starts, stops and ends the one run there is, and passes on what it says. Knows no widget."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.experiment.experiment import Experiment
from app.run.run_thread import Begun, RunEnd, RunThread
from mesp_core.runs import events
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.prepare import prepare

IDLE, RUNNING, STOPPING = "idle", "running", "stopping"


class RunController(QObject):
    """At most one run at a time. `prepare` and `comparison` are replaced in tests."""

    state_changed = Signal(str)  # idle, running or stopping
    preparing = Signal(str, float)
    begun = Signal(Begun)
    loaded = Signal(events.Loaded)
    stepped = Signal(events.Step)
    measured = Signal(events.Memory)
    logged = Signal(events.Log)
    rows = Signal(list)
    method_ended = Signal(str, Outcome)
    ended = Signal(RunEnd)

    def __init__(
        self, prepare: Callable = prepare, comparison: Callable = Comparison, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._prepare, self._make_comparison = prepare, comparison
        self._thread: RunThread | None = None
        self._end: RunEnd | None = None
        self.state = IDLE
        self._of_event = {
            events.Loaded: self.loaded,
            events.Step: self.stepped,
            events.Memory: self.measured,
            events.Log: self.logged,
        }

    @property
    def is_running(self) -> bool:
        """Whether a run is going on, even if it was asked to stop."""
        return self._thread is not None

    def start(self, experiment: Experiment, out_base: Path) -> None:
        """Start a run; its results go to a new folder below `out_base`.

        Raises:
            RuntimeError: if one is going on.
        """
        if self.is_running:
            raise RuntimeError("a run is going on")
        thread = self._thread = RunThread(experiment, out_base, self._prepare, self._make_comparison)
        self._end = None
        for name in ("preparing", "begun", "rows", "method_ended"):
            getattr(thread, name).connect(getattr(self, name))
        thread.event.connect(self._pass_on)
        thread.ended.connect(self._note_end)
        thread.finished.connect(self._finish)
        thread.start()
        self._set_state(RUNNING)

    def stop(self) -> None:
        """End after the running step, keeping what was done."""
        if self._thread is not None and self.state != STOPPING:
            self._set_state(STOPPING)
            self._thread.stop()

    def kill(self) -> None:
        """End at once; what was not saved yet is lost."""
        if self._thread is not None:
            self._set_state(STOPPING)
            self._thread.kill()

    def wait(self, seconds: float) -> bool:
        """Block until the run's thread has ended; False if it has not after `seconds`."""
        return self._thread is None or self._thread.wait(int(seconds * 1000))

    def _pass_on(self, event: events.Event) -> None:
        signal = self._of_event.get(type(event))
        if signal is not None:
            signal.emit(event)

    def _note_end(self, end: RunEnd) -> None:
        self._end = end

    def _finish(self) -> None:
        """The thread is over: only now may the next run begin."""
        thread, self._thread = self._thread, None
        thread.deleteLater()
        end = self._end or RunEnd(problem="The run ended without saying why.")
        self._set_state(IDLE)
        self.ended.emit(end)

    def _set_state(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.state_changed.emit(state)
