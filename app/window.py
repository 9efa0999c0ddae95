"""The main window: puts the parts together. What the parts do is in them."""

import gc
import platform
import traceback
from pathlib import Path

import PySide6
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QFont
from PySide6.QtWidgets import QApplication, QMainWindow, QMessageBox, QSplitter, QVBoxLayout, QWidget

from app.actions import Actions
from app.device.monitor import DeviceMonitor
from app.dialogs.close_question import CloseQuestion
from app.dialogs.settings_dialog import SettingsDialog
from app.experiment.panel import ExperimentPanel
from app.opening import Opener
from app.run.controller import IDLE, STOPPING, RunController
from app.run.exports import Exports, show_in_files
from app.run.run_thread import Begun, RunEnd
from app.run.view import RunView
from app.settings import Settings
from app.threads.background import sentence
from app.widgets.message_bar import MessageBar
from app.widgets.theme import set_appearance
from mesp_core import __version__
from mesp_core.files.user_path import user_path
from mesp_core.runs.outcome import Outcome

SIZE = (1280, 800)
BY_NAME = ("tiny", "sample")  # no paths, even where a file of that name is near
END_OFFERED_AFTER_MS = 1500


class MainWindow(QMainWindow):
    """`controller` and `monitor` are replaced in tests; `settings` is where everything is remembered."""

    def __init__(
        self, settings: Settings, controller: RunController | None = None, monitor: DeviceMonitor | None = None
    ) -> None:
        super().__init__()
        self.setWindowTitle("mesp")
        self.setObjectName("main_window")
        self.setAcceptDrops(True)
        self.settings = settings
        self.controller = controller or RunController(parent=self)
        self.monitor = monitor or DeviceMonitor(parent=self)
        self._why_not = ""  # why Run is disabled
        self._closing = False
        self._usual_font, self._text_size = QApplication.font(), 100  # per cent of it
        self._question: CloseQuestion | None = None
        self.actions_ = Actions(self)
        self.message_bar = MessageBar()
        self.panel = ExperimentPanel(settings.recent("models"), settings.recent("data"))
        self.view = RunView(self.controller, self.monitor, self.statusBar())
        self.opener = Opener(self)
        self.exports = Exports(settings, self.view.plots, self)
        self._place()
        self._connect()
        self.apply_settings()
        self._restore()

    def _place(self) -> None:
        self._rows = QSplitter(Qt.Orientation.Vertical)
        self._rows.addWidget(self.view.plots)
        self._rows.addWidget(self.view.tabs)
        self._rows.setStretchFactor(0, 2)
        self._rows.setStretchFactor(1, 1)
        self._columns = QSplitter(Qt.Orientation.Horizontal)
        self._columns.addWidget(self.panel)
        self._columns.addWidget(self._rows)
        self._columns.setStretchFactor(1, 1)
        for splitter in (self._rows, self._columns):
            splitter.setChildrenCollapsible(False)
        center = QWidget()
        column = QVBoxLayout(center)
        column.setContentsMargins(6, 6, 6, 0)
        column.addWidget(self.message_bar)
        column.addWidget(self.view.device_strip)
        column.addWidget(self._columns, 1)
        self.setCentralWidget(center)

    def _connect(self) -> None:
        actions, controller, panel, data_tab = self.actions_, self.controller, self.panel, self.view.data_tab
        actions.run.triggered.connect(self.run)
        actions.stop.triggered.connect(self._stop)
        actions.open.triggered.connect(self.opener.ask)
        actions.open_model.triggered.connect(self.opener.ask_model)
        actions.export_adapter.triggered.connect(self.exports.ask_adapter)
        actions.export_results.triggered.connect(self.exports.ask_results)
        actions.show_folder.triggered.connect(self.exports.show_folder)
        actions.settings.triggered.connect(self._edit_settings)
        actions.about.triggered.connect(self._about)
        actions.quit.triggered.connect(self.close)
        actions.close.triggered.connect(self.close)
        actions.minimize.triggered.connect(self.showMinimized)
        for number, (name, tab) in enumerate(self.view.named_tabs.items(), 1):
            show = actions.view_menu.addAction(f"Show {name}", f"Ctrl+{number}")
            show.triggered.connect(lambda _checked=False, tab=tab: self.view.tabs.setCurrentWidget(tab))
        panel.ready_changed.connect(self._note_ready)
        panel.changed.connect(lambda: self.view.expect(panel.methods))
        panel.prepared.connect(data_tab.show_data)
        panel.preparing.connect(data_tab.show_busy)
        panel.unprepared.connect(data_tab.show_error)
        self.opener.model.connect(lambda folder: self._select(panel.set_model, folder))
        self.opener.data.connect(lambda file: self._select(panel.set_data, file))
        self.opener.refused.connect(lambda reason: self.message_bar.show_message("warning", reason))
        self.exports.saved.connect(self._say_saved)
        self.exports.failed.connect(lambda reason: self.message_bar.show_message("error", reason))
        controller.state_changed.connect(self._show_state)
        controller.begun.connect(self._on_begun)
        controller.method_ended.connect(self._on_method_ended)
        controller.ended.connect(self._on_ended)

    def apply_settings(self) -> None:
        """Look as the settings say."""
        set_appearance(self.settings.appearance)
        percent = self.settings.text_size
        if percent == self._text_size or self._usual_font.pointSizeF() <= 0:  # the platform may give it in pixels
            return
        # Not without need: it also replaces the fonts the platform has for menus and headings.
        self._text_size = percent
        font = QFont(self._usual_font)
        font.setPointSizeF(font.pointSizeF() * percent / 100)
        QApplication.setFont(font)

    def _restore(self) -> None:
        if not self.restoreGeometry(self.settings.layout("window")):
            self.resize(*SIZE)
        self._rows.restoreState(self.settings.layout("rows"))
        self._columns.restoreState(self.settings.layout("columns"))
        if (experiment := self.settings.experiment) is not None:
            self.panel.set_experiment(experiment)
        self.view.expect(self.panel.methods)
        self._show_state(IDLE)

    def after_show(self) -> None:
        """What can wait until the window is there."""
        self.monitor.start()
        gc.freeze()  # what was imported stays: the collector need not walk over it again and again while plots move

    # --- a run ---

    def run(self) -> None:
        """Run what the panel describes."""
        experiment = self.panel.experiment()
        if experiment is None or self.controller.is_running:
            return
        self._remember()
        self.message_bar.hide()
        self.controller.start(experiment, self.settings.out_folder)

    def _stop(self) -> None:
        """The first time after the step; then, offered after a pause, at once. A double click must not lose anything."""
        if self.controller.state == STOPPING:
            self.controller.kill()
        else:
            self.controller.stop()

    def _offer_end(self) -> None:
        if self.controller.state == STOPPING:
            self.actions_.offer_end(True)
            self.actions_.stop.setEnabled(True)

    def _on_begun(self, begun: Begun) -> None:
        self.exports.end = None
        self.panel.adopt(begun.prepared)

    def _on_method_ended(self, method: str, outcome: Outcome) -> None:
        if not outcome.ok and outcome.kind != "killed":  # the other methods go on, so it is said at once
            self.message_bar.show_message("error", outcome.message, details=outcome.details)

    def _on_ended(self, end: RunEnd) -> None:
        if end.results is not None:  # else it never began, and the run before it can still be exported
            self.exports.end = end
        elif end.problem:
            self.panel.look_again()
        self._show_state(IDLE)
        if self._closing:
            self.close()
            return
        export = [("Export Adapter…", self.exports.ask_adapter)] if end.adapters else []
        if end.problem:
            self.message_bar.show_message("error", end.problem, export, end.details)
        elif end.stopped:
            self.message_bar.show_message("info", _stopped(end), export)

    def _show_state(self, state: str) -> None:
        actions, running = self.actions_, self.controller.is_running
        self.panel.set_running(running)
        actions.stop.setEnabled(running and state != STOPPING)
        actions.offer_end(False)
        if state == STOPPING:
            QTimer.singleShot(END_OFFERED_AFTER_MS, self._offer_end)
        actions.export_adapter.setEnabled(not running and self.exports.has_adapter)
        actions.export_results.setEnabled(not running and self.exports.has_results)
        actions.show_folder.setEnabled(self.exports.has_folder)
        self._show_ready()

    def _note_ready(self, why_not: str) -> None:
        self._why_not = why_not
        self._show_ready()

    def _show_ready(self) -> None:
        running = self.controller.is_running
        self.actions_.run.setEnabled(not running and not self._why_not)
        self.actions_.explain(self.actions_.run, "A run is going on" if running else self._why_not)

    # --- files ---

    def _select(self, select, path: str) -> None:  # noqa: ANN001 (a method of the panel)
        if self.controller.is_running:
            self.message_bar.show_message("info", "Model and data can be chosen again when the run has ended.")
        else:
            select(path)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Local files and folders may be dropped anywhere."""
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Select what was dropped."""
        event.acceptProposedAction()
        self.opener.drop(event.mimeData())

    def _say_saved(self, text: str, folder: Path) -> None:
        self.view.log_tab.say(text)
        self.message_bar.show_message("info", text, [("Show Folder", lambda: show_in_files(folder))])

    # --- the rest ---

    def _edit_settings(self) -> None:
        dialog = SettingsDialog(self.settings, self)
        dialog.applied.connect(self.apply_settings)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _about(self) -> None:
        versions = f"Python {platform.python_version()}, PySide6 {PySide6.__version__}"
        text = f"mesp {__version__}\n{versions}\n\nExact, low-memory LoRA fine-tuning, made visible."
        about = QMessageBox(QMessageBox.Icon.Information, "About mesp-gui", text, parent=self)
        about.finished.connect(about.deleteLater)
        about.open()

    def report_unexpected(self, error: BaseException) -> None:
        """A defect of ours: the window lives on, and what can be told about it is in the log."""
        self.view.log_tab.say("".join(traceback.format_exception(error)), "error")
        text = f"{sentence(error)}. This is a defect in mesp-gui; the Log tab has the details."
        self.message_bar.show_message("error", text)

    def _remember(self) -> None:
        experiment = self.panel.experiment()
        if experiment is not None:
            self.settings.experiment = experiment
            for kind, path in (("models", experiment.config.model), ("data", experiment.config.data)):
                self.settings.remember(kind, path if path in BY_NAME else str(user_path(path)))
        self.settings.set_layout("window", self.saveGeometry())
        self.settings.set_layout("rows", self._rows.saveState())
        self.settings.set_layout("columns", self._columns.saveState())
        self.settings.sync()

    # --- closing ---

    @property
    def is_closing(self) -> bool:
        """Whether the window closes once the run has ended."""
        return self._closing

    def closeEvent(self, event: QCloseEvent) -> None:
        """Ask before a run is lost; leave no process and no thread behind."""
        if self.controller.is_running:
            event.ignore()
            self._ask_to_close()
            return
        try:
            self._remember()
        finally:
            self.panel.close_background()
            self.view.data_tab.close_background()
            self.exports.close_background()
        super().closeEvent(event)

    def _ask_to_close(self) -> None:
        if self._question is None:
            self._question = CloseQuestion(self, self.close_after_run, self._end_and_close)
            self.controller.ended.connect(self._question.reject)  # it is answered then
        self._question.open()
        self._question.raise_()

    def close_after_run(self) -> None:
        """Stop what runs after its step, then close without asking."""
        self._closing = True
        if not self.controller.is_running:
            self.close()
        elif self.controller.state != STOPPING:
            self.controller.stop()

    def _end_and_close(self) -> None:
        self._closing = True
        self.controller.kill()


def _stopped(end: RunEnd) -> str:
    if not end.methods:
        return "Stopped before the first step; nothing was left behind."
    told = [outcome.message for outcome in end.methods.values()]
    lost = [name for name, outcome in end.methods.items() if outcome.steps and outcome.adapter is None]
    if lost:
        told.append(f"The adapter of {', '.join(lost)} was not saved.")
    if any(outcome.steps for outcome in end.methods.values()):
        told.append(f"What was done is in {end.out}.")
    return " ".join(told)
