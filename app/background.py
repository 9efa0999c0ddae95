"""Work that must not stall the window: a function on a thread of its own, the newest request wins."""

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QThread, Signal

from mesp_core.errors import MespError

Report = Callable[[str, float], None]
Work = Callable[[Report], Any]


class Cancelled(Exception):
    """Raised inside the work, out of its `report`, once it is not wanted any more."""


class Task(QThread):
    """One call of `work(report)`. `report(message, fraction)` tells progress and raises Cancelled after `cancel`.

    Exactly one of `done`, `failed` and `dropped` is emitted.
    """

    progress = Signal(str, float)
    done = Signal(object)
    failed = Signal(Exception)
    dropped = Signal()

    def __init__(self, work: Work, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._work: Work | None = work
        self._cancelled = False

    def cancel(self) -> None:
        """The result is not wanted any more."""
        self._cancelled = True

    def run(self) -> None:
        """On the new thread."""
        try:
            result = self._work(self._report)
        except Cancelled:
            self.dropped.emit()
        except Exception as error:
            self.failed.emit(error)
        else:
            self.done.emit(result)
        finally:
            self._work = None  # what it closes over need not live as long as this object

    def _report(self, message: str, fraction: float) -> None:
        if self._cancelled:
            raise Cancelled
        self.progress.emit(message, fraction)


class Latest(QObject):
    """Runs one task at a time; a new one takes the place of the old, whose outcome is then never told."""

    progress = Signal(str, float)
    done = Signal(object)
    failed = Signal(Exception)
    busy_changed = Signal(bool)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._task: Task | None = None
        self._old: list[Task] = []  # not wanted any more, but not ended yet either

    @property
    def busy(self) -> bool:
        """Whether a task whose outcome will be told is running."""
        return self._task is not None

    def start(self, work: Work) -> None:
        """Run `work(report)` in place of whatever runs now."""
        self._drop()
        task = self._task = Task(work)
        task.progress.connect(lambda message, fraction: task is self._task and self.progress.emit(message, fraction))
        task.done.connect(lambda result: self._tell(task, self.done, result))
        task.failed.connect(lambda error: self._tell(task, self.failed, error))
        task.finished.connect(lambda: self._forget(task))
        task.start()
        self.busy_changed.emit(True)

    def cancel(self) -> None:
        """Drop what runs now."""
        if self._drop():
            self.busy_changed.emit(False)

    def close(self, wait_s: float = 5.0) -> None:
        """Drop what runs now and wait for its thread to end: a thread must not outlive its object."""
        self.cancel()
        until = time.monotonic() + wait_s
        for task in self._old:
            task.wait(max(1, int(1000 * (until - time.monotonic()))))

    def _drop(self) -> bool:
        task, self._task = self._task, None
        if task is None:
            return False
        task.cancel()
        self._old.append(task)
        return True

    def _tell(self, task: Task, signal: Signal, outcome: object) -> None:
        if task is self._task:
            self._old.append(task)
            self._task = None
            self.busy_changed.emit(False)
            signal.emit(outcome)

    def _forget(self, task: Task) -> None:
        if task in self._old:
            self._old.remove(task)
        if task is self._task:  # `finished` came before `done` was delivered: keep the object until then
            self._old.append(task)


def sentence(error: Exception) -> str:
    """What to tell the person about an error of background work."""
    if isinstance(error, MespError):
        return str(error)
    return f"Unexpected {type(error).__name__}: {error}"
