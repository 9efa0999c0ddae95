"""Everything that shows a run while it goes: passes each of the controller's signals to the widgets it concerns."""

from collections.abc import Sequence

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QLabel, QProgressBar, QStatusBar, QTabWidget, QWidget

from app.device.monitor import DeviceMonitor
from app.device.strip import DeviceStrip
from app.experiment.experiment import Experiment
from app.plots.panel import PlotPanel
from app.run.controller import STOPPING, RunController
from app.run.progress import Progress
from app.run.run_thread import Begun, RunEnd
from app.tabs.data_tab import DataTab
from app.tabs.log_tab import LogTab
from app.tabs.steps_tab import StepsTab
from app.tabs.summary_tab import SummaryTab
from mesp_core.runs import events
from mesp_core.runs.outcome import Outcome


class RunView(QObject):
    """Owns the widgets of a run; the window places them: `device_strip`, `plots`, `tabs`, and two in the status bar."""

    def __init__(self, controller: RunController, monitor: DeviceMonitor, status_bar: QStatusBar) -> None:
        super().__init__(status_bar)
        self._controller = controller
        self.device_strip = DeviceStrip(monitor)
        self.plots = PlotPanel()
        self.summary_tab, self.steps_tab, self.data_tab, self.log_tab = SummaryTab(), StepsTab(), DataTab(), LogTab()
        self.tabs = QTabWidget(objectName="tabs")
        for name, tab in self.named_tabs.items():
            self.tabs.addTab(tab, name)
        self._status = QLabel("Ready", textFormat=Qt.TextFormat.PlainText, objectName="status")
        self._bar = QProgressBar(maximum=1000, textVisible=False, objectName="progress")
        self._bar.setFixedWidth(24 * self._bar.fontMetrics().averageCharWidth())
        self._bar.hide()
        self._status.setIndent(6)
        status_bar.addWidget(self._status, 1)
        status_bar.addPermanentWidget(self._bar)
        self._progress: Progress | None = None
        self._paper: list[dict] = []  # the paper's rows for this run
        controller.preparing.connect(self._on_preparing)
        controller.begun.connect(self._on_begun)
        controller.loaded.connect(self._on_loaded)
        controller.stepped.connect(self._on_step)
        controller.measured.connect(self._on_memory)
        controller.logged.connect(self.log_tab.add)
        controller.rows.connect(self._on_rows)
        controller.method_ended.connect(self._on_method_ended)
        controller.state_changed.connect(self._on_state)
        controller.ended.connect(self._on_ended)

    @property
    def named_tabs(self) -> dict[str, QWidget]:
        """The tabs in their order."""
        return {"Summary": self.summary_tab, "Steps": self.steps_tab, "Data": self.data_tab, "Log": self.log_tab}

    def expect(self, methods: Sequence[str]) -> None:
        """These methods are ticked: before the first run the plots make room for them."""
        if self._progress is None and tuple(methods) != self.plots.methods:  # asked at every letter that is typed
            self.plots.begin(methods)

    def _begin(self, experiment: Experiment) -> None:
        """The run is about to start, so what is left of the last one goes; one that cannot begin leaves it."""
        self._progress = Progress(experiment.methods, experiment.config.steps)
        self.plots.begin(experiment.methods)
        self.steps_tab.begin(experiment.methods)
        self.summary_tab.clear()
        self.device_strip.begin()
        self.log_tab.say(f"Run: {', '.join(experiment.methods)} on {experiment.config.model}, {experiment.config.data}")

    def _on_preparing(self, message: str, fraction: float) -> None:
        self._say(message)
        self._show_fraction(fraction)

    def _on_begun(self, begun: Begun) -> None:
        self._begin(begun.experiment)
        self._paper = begun.paper
        for warning in begun.prepared.tokens.warnings:
            self.log_tab.say(warning, "warning")
        self._say("Starting the first worker")

    def _on_loaded(self, loaded: events.Loaded) -> None:
        self._progress.load(loaded.method)
        facts = [loaded.device, f"activations {loaded.dtype}", f"{loaded.trainable_parameters:,} trainable parameters"]
        facts += [f"{kind}: {kernel}" for kind, kernel in loaded.kernels.items()]
        self.log_tab.add(events.Log(loaded.method, "info", ", ".join(facts)))
        self._show_progress()

    def _on_step(self, step: events.Step) -> None:
        self.plots.add_step(step)
        self.steps_tab.add_step(step)
        self.device_strip.add_step(step)
        self._progress.add(step.method, step.step, step.step_time_s)
        self._show_progress()

    def _on_memory(self, memory: events.Memory) -> None:
        self.plots.add_memory(memory)
        self.device_strip.add_memory(memory)

    def _on_rows(self, rows: list[dict]) -> None:
        self.summary_tab.show_rows(rows, self._paper)

    def _on_method_ended(self, method: str, outcome: Outcome) -> None:
        self._progress.end(method)
        self.device_strip.end_method(method)
        self.plots.end_method(method)
        self.log_tab.say(outcome.message, "info" if outcome.ok else "error")

    def _on_state(self, state: str) -> None:
        if state == STOPPING:
            self._status.setText("Stopping after this step" if self._bar.isVisible() else "Stopping")

    def _on_ended(self, end: RunEnd) -> None:
        if end.results is not None:
            self.device_strip.end()
        self._bar.hide()
        if end.problem and not end.methods:  # else the method's end has said it
            self.log_tab.say(end.problem, "error")
        self._status.setText("Ended with a problem" if end.problem else "Stopped" if end.stopped else "Finished")

    def _show_progress(self) -> None:
        self._say(self._progress.text)
        self._show_fraction(self._progress.fraction)

    def _show_fraction(self, fraction: float) -> None:
        self._bar.setValue(round(1000 * fraction))
        self._bar.show()

    def _say(self, text: str) -> None:
        if self._controller.state != STOPPING:  # then it is more important that it is stopping
            self._status.setText(text)
