"""Reads the data in the background whenever what decides its tokens has changed and then stayed for a moment."""

import os
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.threads.background import Latest, Report
from mesp_core.data.rows import read_rows, unreadable
from mesp_core.errors import CheckpointError
from mesp_core.runs.prepare import Prepared, data_path, prepare
from mesp_core.settings.run_config import RunConfig

QUIET_MS = 400
# Of RunConfig. The batch size is not among them: whether it fits is judged on the tokens.
TOKEN_FIELDS = ("model", "data", "seq_len", "loss_on", "max_samples", "chat_template")

Wanted = tuple[RunConfig, bool]  # the bool: whole, as in `Preparation.want`


class Preparation(QObject):
    """`want` says what for; `result` or `error` is the outcome, both None until there is one.

    `prepare` and `quiet_ms` are replaced in tests.
    """

    changed = Signal()  # there is an outcome
    progress = Signal(str)

    def __init__(
        self, prepare: Callable[[RunConfig, Report], Any] = prepare, quiet_ms: int = QUIET_MS, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._prepare = prepare
        self._wanted: Wanted | None = None
        self._known: Wanted | None = None  # what the outcome is of
        self._paused = False
        self.result: Prepared | None = None
        self.error: Exception | None = None
        self._timer = QTimer(self, singleShot=True, interval=quiet_ms)
        self._timer.timeout.connect(self._start)
        self._latest = Latest(self)
        self._latest.progress.connect(lambda message, _: self.progress.emit(message))
        self._latest.done.connect(lambda result: self._end(result, None))
        self._latest.failed.connect(lambda error: self._end(None, error))

    def want(self, config: RunConfig | None, whole: bool = True) -> None:
        """Prepare this unless that is being done or was done; None: nothing can be.

        Not `whole`: the model is not here, or another field is wrong. Then only the data's first row is read, so that a file
        which is missing, or something else altogether, is known at once.
        """
        wanted = None if config is None else (config, whole)
        if wanted != self._wanted:
            self._wanted = wanted
            if not self._paused:  # what is known of a run's data holds while it goes on
                self.again()

    def again(self) -> None:
        """Forget the outcome and start anew: the files may be others now."""
        self.result = self.error = self._known = None
        self._latest.cancel()
        self._timer.stop()
        if self._wanted is not None and not self._paused:
            self._timer.start()

    def pause(self, paused: bool) -> None:
        """A run has the machine for itself."""
        self._paused = paused
        if paused:
            self._latest.cancel()
            self._timer.stop()
        elif self._known is None or self._known != self._wanted:
            self.again()

    def adopt(self, config: RunConfig, result: Prepared) -> None:
        """Somebody else has prepared `config`, as a whole."""
        self._latest.cancel()
        self._timer.stop()
        self._known = (config, True)
        self.result, self.error = result, None

    def close_background(self) -> None:
        """End the thread."""
        self._timer.stop()
        self._latest.close()

    def _start(self) -> None:
        config, whole = self._wanted
        work = self._prepare if whole else _read_first_row
        self._latest.start(lambda report: work(config, report))

    def _end(self, result: Prepared | None, error: Exception | None) -> None:
        self._known = self._wanted
        self.result, self.error = result, error
        self.changed.emit()


def _read_first_row(config: RunConfig, report: Report) -> None:
    file = data_path(config.data)
    try:
        os.stat(file)
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from None
    next(read_rows(file), None)


def blamed(error: Exception) -> str:
    """The field that an error of `prepare` belongs to."""
    text = str(error)
    if isinstance(error, CheckpointError):
        return "model"
    if text.startswith("seq_len: ") or "raise seq_len" in text:
        return "seq_len"
    if text.startswith("loss_on"):
        return "loss_on"
    if text.startswith("chat_template: "):
        return "chat_template"
    return "data"
