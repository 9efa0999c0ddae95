"""The experiment panel: all fields, judged together at every change, and the data read in the background."""

import math
from collections.abc import Callable, Mapping

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.experiment.data_field import DataField
from app.experiment.experiment import Experiment
from app.experiment.judge import check
from app.experiment.model_field import ModelField
from app.experiment.page import Page
from app.experiment.plan_line import PlanLine, Wanted
from app.experiment.preparation import TOKEN_FIELDS, Preparation, blamed
from app.threads.background import sentence
from mesp_core.data.batches import check_enough
from mesp_core.errors import MespError
from mesp_core.runs.prepare import Prepared, check_seq_len
from mesp_core.settings.run_config import RunConfig

WIDTH = 55  # average characters
NEEDS_MODEL = "The data is read once the model, whose tokenizer it needs, is on this machine."
READING = "Reading…"
FETCHING = "Fetching WikiText-2 from the Hugging Face hub, once…"


class ExperimentPanel(QWidget):
    """What to run. `model`, `data`, `preparation` and `plan_line` are replaced in tests."""

    changed = Signal()
    ready_changed = Signal(str)  # why Run is disabled, "" if it is not
    prepared = Signal(object)  # a Prepared for the fields of now
    preparing = Signal(str)
    unprepared = Signal(str)  # why there is nothing prepared

    def __init__(
        self,
        recent_models: list[str] | None = None,
        recent_data: list[str] | None = None,
        model: ModelField | None = None,
        data: DataField | None = None,
        preparation: Preparation | None = None,
        plan_line: PlanLine | None = None,
    ) -> None:
        super().__init__()
        self.setObjectName("experiment_panel")
        self._model, self._data = model or ModelField(recent_models or []), data or DataField(recent_data or [])
        self._preparation = preparation or Preparation()
        self._preparation.setParent(self)
        self._plan_line = plan_line or PlanLine()
        self._errors: dict[str, str] = {}
        self._methods: tuple[str, ...] = ()
        self._reason: str | None = None  # as told last
        self._told: tuple | None = None  # of the data
        self._running = False
        self._page = Page(self._model, self._data)
        further = self._page.advanced.further
        self._titles = {"model": self._model.title, "data": self._data.title, "methods": "Methods"}
        self._titles |= {field.name: field.title for field in (*self._page.fields.values(), further)}
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(_Scroll(self._page), 1)
        layout.addWidget(self._plan_line)

        # Once whoever made the panel has connected to it, unless a model was chosen by then.
        self._begin = QTimer(self, singleShot=True, interval=0)
        self._begin.timeout.connect(self._model.look)
        self._begin.start()
        self._page.changed.connect(self._edit)
        self._model.looked.connect(self._judge)
        self._model.looked.connect(self._begin.stop)
        self._data.looked.connect(self._judge)
        self._data.again.connect(self._read_again)
        self._preparation.changed.connect(self._judge)
        self._preparation.progress.connect(self.preparing)
        self._plan_line.changed.connect(self._judge)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to compare, in order; empty while something is wrong with them."""
        return self._methods

    def experiment(self) -> Experiment | None:
        """What the fields say; None while something is wrong."""
        self._model.box.commit()
        self._data.box.commit()
        self._judge()
        if self._reason:
            return None
        config = RunConfig(**self._page.values(), method=self._methods[0])
        return Experiment(config, self._methods, self._page.advanced.interleave.isChecked())

    def set_experiment(self, experiment: Experiment) -> None:
        """Set every field."""
        self._page.advanced.interleave.setChecked(experiment.interleave)
        self._page.set_methods(experiment.methods)
        self._page.set_config(experiment.config)

    def set_model(self, model: str) -> None:
        """Choose a model; the one of before is looked up again."""
        self._model.set_value(model)

    def set_data(self, data: str) -> None:
        """Choose a data file; the one of before is read again."""
        self._data.set_value(data)

    def look_again(self) -> None:
        """Look the model up and read the data anew: a run has found them changed."""
        self._model.look()
        self._data.look_again()

    def adopt(self, prepared: Prepared) -> None:
        """Show what the run that has just begun has prepared itself: it is what it trains on, whatever was read before."""
        values = self._page.values()
        self._preparation.adopt(RunConfig(**{name: values[name] for name in TOKEN_FIELDS}), prepared)
        self._judge()

    def set_running(self, running: bool) -> None:
        """While a run goes on the fields can be read and scrolled, not changed, and nothing is prepared."""
        if running == self._running:
            return
        self._running = running
        self._page.setEnabled(not running)
        self._preparation.pause(running)
        if running:
            self._model.stop_fetching()
        elif self._model.missing:  # the run has fetched it, if it got that far
            self._model.look()
        self._judge()

    def close_background(self) -> None:
        """End all threads."""
        self._begin.stop()
        self._preparation.close_background()
        self._plan_line.close_background()
        self._model.close_background()
        self._data.close_background()

    def sizeHint(self) -> QSize:
        """A third of a small window."""
        return QSize(WIDTH * self.fontMetrics().averageCharWidth(), 30 * self.fontMetrics().height())

    def _edit(self) -> None:
        self._judge()
        self.changed.emit()

    def _judge(self) -> None:
        """Find all that is wrong, ask for what must be prepared, and say both."""
        values = self._page.values()
        errors = check(values)
        errors |= self._errors_of_places(values, errors)
        errors |= self._errors_of_methods()
        whole = self._model.found is not None and not any(name in errors for name in TOKEN_FIELDS)
        config = None
        if "data" not in errors and not self._data.fetching:
            config = RunConfig(**{name: values[name] for name in (TOKEN_FIELDS if whole else ("data",))})
        self._preparation.want(config, whole)
        errors |= self._errors_of_preparation(values, errors)
        errors |= self._errors_of_plan(values, errors)
        self._show({name: message.removeprefix(f"{name}: ") for name, message in errors.items()})
        self._tell_data()
        self._tell_ready()

    def _errors_of_places(self, values: Mapping, errors: Mapping[str, str]) -> dict[str, str]:
        more = {"model": self._model.problem, "data": self._data.problem}
        if self._model.found is not None:
            longest = self._model.found.checkpoint.architecture.max_position_embeddings
            self._page.fields["seq_len"].limit_offers(longest or math.inf)
            if "seq_len" not in errors and "model" not in errors:
                config = RunConfig(model=values["model"], seq_len=values["seq_len"])
                more["seq_len"] = _refusal(check_seq_len, config, self._model.found.checkpoint)
        return {name: message for name, message in more.items() if message and name not in errors}

    def _errors_of_methods(self) -> dict[str, str]:
        ticked, further = self._page.methods.value(), self._page.advanced.further
        self._methods = further.parse(ticked)
        if further.error:
            return {further.name: further.error}
        return {} if self._methods else {"methods": "Tick at least one method."}

    def _errors_of_preparation(self, values: Mapping, errors: Mapping[str, str]) -> dict[str, str]:
        prepared, error = self._preparation.result, self._preparation.error
        if error is not None:
            return {blamed(error): sentence(error)}
        if prepared is not None and "batch_size" not in errors:
            message = _refusal(check_enough, prepared.tokens, values["batch_size"], prepared.data_file)
            return {"batch_size": message} if message else {}
        return {}

    def _errors_of_plan(self, values: Mapping, errors: Mapping[str, str]) -> dict[str, str]:
        wanted = None
        if self._model.found is not None and not errors:
            interleave = self._page.advanced.interleave.isChecked()
            wanted = Wanted(self._model.found.checkpoint, RunConfig(**values), self._methods, interleave)
        self._plan_line.want(wanted)
        # Only a method that was typed has a budget.
        return {self._page.advanced.further.name: self._plan_line.problem} if self._plan_line.problem else {}

    def _show(self, errors: Mapping[str, str]) -> None:
        page = self._page
        for field in (*page.fields.values(), page.advanced.further):
            field.set_error(errors.get(field.name, ""))
        page.methods.set_error(errors.get("methods", ""))
        folded = {*page.advanced.fields, page.advanced.further.name}
        if folded & (errors.keys() - self._errors.keys()):
            page.fold.set_open(True)
        self._errors = dict(errors)

    def _tell_data(self) -> None:
        """The state of the data, to the field and to whoever listens, if it is another than before."""
        prepared = self._preparation.result
        if prepared is not None:
            name, what = "prepared", prepared
        elif message := self._why_unprepared():
            name, what = "unprepared", message
        else:
            name, what = "preparing", FETCHING if self._data.fetching else READING
        # The folder of tokens is named by a hash of all that they depend on.
        state = (name, prepared.data_file, prepared.tokens.path) if prepared is not None else (name, what)
        if state == self._told:
            return
        self._told = state
        if name == "preparing":
            self._data.set_status(what)
        else:
            self._data.set_tokens(prepared and prepared.tokens)
        getattr(self, name).emit(what)

    def _why_unprepared(self) -> str:
        """Why the data cannot be read; "" if it is being read."""
        if self._preparation.error is not None:
            return sentence(self._preparation.error)
        if wrong := next((name for name in TOKEN_FIELDS if name in self._errors), ""):
            return self._named(wrong)
        return NEEDS_MODEL if self._model.missing and not self._data.fetching else ""

    def _tell_ready(self) -> None:
        wrong = next((name for name in self._titles if name in self._errors), None)
        if wrong is not None:
            reason = self._named(wrong)
        else:
            reason = f"{self._data.title}: {FETCHING}" if self._data.fetching else ""
        if reason != self._reason:
            self._reason = reason
            self.ready_changed.emit(reason)

    def _named(self, name: str) -> str:
        """What is wrong with a field, under the field's name on the screen."""
        return f"{self._titles[name]}: {self._errors[name]}"

    def _read_again(self) -> None:
        self._preparation.again()
        self._judge()


class _Scroll(QScrollArea):
    """Scrolls up and down only: it is always as wide as its content needs."""

    def __init__(self, content: QWidget) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidget(content)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Keep up with the content, whose labels grow with the font."""
        if watched is self.widget() and event.type() == QEvent.Type.LayoutRequest:
            self.setMinimumWidth(watched.minimumSizeHint().width() + self.verticalScrollBar().sizeHint().width())
        return super().eventFilter(watched, event)


def _refusal(judge: Callable, *arguments: object) -> str:
    try:
        judge(*arguments)
    except MespError as error:
        return str(error)
    return ""
