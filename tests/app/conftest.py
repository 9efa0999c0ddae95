"""What the app's tests share: settings of their own, a comparison that only plays one."""

import gc
import threading
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QApplication
from window_driver import children

from mesp_core.runs import events
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.results import Results


def step_event(method="mesp", step=1, loss=4.0, **changes):
    """A step as the session gives it."""
    values = {
        "step_time_s": 0.1,
        "tokens": 64,
        "trained_tokens": 60,
        "learning_rate": 1e-3,
        "allocator_peak_mb": 8.0,
        "allocator_peak_by_phase_mb": {"forward": 7.0, "loss": 5.0, "backward": 8.0},
        "footprint_start_mb": 20.0,
        "footprint_end_mb": 21.0,
        "footprint_peak_mb": 30.0,
    }
    return events.Step(method=method, step=step, loss=loss, **values | changes)


class PlayedComparison:
    """Has the face of a Comparison; every method does its steps at once, or waits for `gate` before each."""

    gate: threading.Event | None = None
    problem = ""
    fails_with: Outcome | None = None  # how the first method ends

    def __init__(self, config, methods, prepared, folder, interleave=False):
        self.config, self.methods, self.folder, self.out = config, list(methods), folder, folder.path
        self.interleave = interleave
        self.results = Results(config.to_dict(), {})
        self._asked = threading.Event()

    def run(self):
        for method in self.methods:
            if self._asked.is_set():
                return
            yield from self._method(method)

    def _method(self, method):
        loaded = events.Loaded(method, "llama", 1000, 10, 4, "float32", "float32", "cpu", {}, 20.0, 5)
        taken = 0
        for event in [loaded, events.Memory(method, 0.1, 25.0)]:
            self.results.add(event)
            yield event
        for step in range(1, self.config.steps + 1):
            if self.gate is not None:
                self.gate.wait(10)
            event = step_event(method, step, loss=5.0 - 0.1 * step)
            self.results.add(event)
            yield event
            taken = step
            if self._asked.is_set():
                break
        kind = "finished" if taken == self.config.steps else "stopped"
        outcome = Outcome(kind, f"{method}: {kind} after {taken} of {self.config.steps} steps.", taken)
        if self.fails_with is not None and method == self.methods[0]:
            outcome = self.fails_with
        self.results.end(method, outcome)

    @property
    def outcome(self):
        outcomes = [result.outcome for result in self.results.methods.values() if result.outcome is not None]
        return next((outcome for outcome in outcomes if not outcome.ok), outcomes[-1] if outcomes else None)

    def stop(self):
        self._asked.set()

    kill = stop


@pytest.fixture
def played():
    """A fresh subclass of PlayedComparison, whose attributes a test may set."""
    return type("Played", (PlayedComparison,), {})


@pytest.fixture
def make_step():
    """make_step(method, step, loss, **changes) -> a step event."""
    return step_event


@pytest.fixture
def prepared_nothing():
    """A `prepare` that finds everything at once."""
    return lambda config, report: SimpleNamespace(source=None, checkpoint=None, tokens=None)


@pytest.fixture
def store(tmp_path):
    """A settings file of the test's own."""
    return QSettings(str(tmp_path / "settings.ini"), QSettings.Format.IniFormat)


@pytest.fixture
def settings(store, tmp_path):
    """Settings of the test's own; runs go below tmp_path/runs."""
    from app.settings import Settings

    own = Settings(store)
    own.out_folder = tmp_path / "runs"
    return own


@pytest.fixture
def open_window(store, tmp_path, qtbot):
    """open_window() -> the window over the test's settings; whatever it runs is ended with the test."""
    windows = []

    from app.settings import Settings
    from app.window import MainWindow

    def make(**parts):
        settings = Settings(store)
        settings.out_folder = tmp_path / "runs"
        window = MainWindow(settings, **parts)
        windows.append(window)  # not qtbot's: it would delete the window before this fixture can end the run
        window.show()
        window.after_show()
        return window

    yield make
    for window in windows:
        window.controller.kill()
        qtbot.waitUntil(lambda window=window: not window.controller.is_running, timeout=20_000)
        window.close()
        window.deleteLater()
    assert not children()


@pytest.fixture
def window(open_window):
    return open_window()


@pytest.fixture(autouse=True)
def garbage_of_the_main_thread():
    """As in the app: a test's background thread does not destroy the widgets that the test before it left behind."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def light_again(qapp):
    """A test may change the palette or the font; the next one begins with the usual ones."""
    font = QApplication.font()
    yield
    from app.widgets.theme import set_appearance

    set_appearance("light")
    QApplication.setFont(font)
