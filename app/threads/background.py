"""Work that must not stall the window: a function on a thread of its own, the newest request wins."""

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QThread, Signal

from app.threads.patient import Cancelled, Report, patiently
from mesp_core.errors import MespError

Work = Callable[[Report], Any]


class Task(QThread):
    """One call of `work(report)`. `report(message, fraction)` tells progress and raises Cancelled after `cancel`.

    One of `done` and `failed` is emitted, or none if it was cancelled. `message` is the progress until the work tells some.
    Work that `may_hang`, as reading a file on a dead network mount, is given up half a second after `cancel`: `patiently`.
    """

    progress = Signal(str, float)
    done = Signal(object)
    failed = Signal(Exception)

    def __init__(self, work: Work, message: str = "", may_hang: bool = True) -> None:
        super().__init__()
        self._work: Work | None = work
        self._message, self._may_hang = message, may_hang
        self._cancelled = False

    def cancel(self) -> None:
        """The result is not wanted any more."""
        self._cancelled = True

    def run(self) -> None:
        """On the new thread."""
        try:
            result = patiently(self._work, self._report, self._message) if self._may_hang else self._work(self._report)
        except Cancelled:
            pass  # nobody wants to know
        except Exception as error:
            self.failed.emit(error)
        else:
            self.done.emit(result)
        finally:
            self._work = None  # what it closes over need not live as long as this object

    def _report(self, message: str, fraction: float) -> None:
        if self._cancelled:
            raise Cancelled
        if message:
            self.progress.emit(message, fraction)


class Latest(QObject):
    """Runs one task at a time; a new one takes the place of the old, whose outcome is then never told.

    `may_hang` is that of its tasks.
    """

    progress = Signal(str, float)
    done = Signal(object)
    failed = Signal(Exception)
    busy_changed = Signal(bool)

    def __init__(self, parent: QObject | None = None, may_hang: bool = True) -> None:
        super().__init__(parent)
        self._may_hang = may_hang
        self._task: Task | None = None
        self._old: list[Task] = []  # not wanted any more, but not ended yet either

    @property
    def busy(self) -> bool:
        """Whether a task whose outcome will be told is running."""
        return self._task is not None

    def start(self, work: Work, message: str = "") -> None:
        """Run `work(report)` in place of whatever runs now; `message` is its progress until it tells some."""
        self._drop()
        task = self._task = Task(work, message, self._may_hang)
        # Bound methods and `sender`: a lambda that held the task would keep it, and its thread's shell, for good.
        task.progress.connect(self._on_progress)
        task.done.connect(self._on_done)
        task.failed.connect(self._on_failed)
        task.finished.connect(self._on_finished)
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

    def _on_progress(self, message: str, fraction: float) -> None:
        if self.sender() is self._task:
            self.progress.emit(message, fraction)

    def _on_done(self, result: object) -> None:
        if self._ends():
            self.done.emit(result)

    def _on_failed(self, error: Exception) -> None:
        if self._ends():
            self.failed.emit(error)

    def _ends(self) -> bool:
        """Whether it is the wanted task that tells its outcome; it is then over."""
        if self.sender() is not self._task:
            return False
        self._drop()
        self.busy_changed.emit(False)
        return True

    def _on_finished(self) -> None:
        task = self.sender()
        if task in self._old:
            self._old.remove(task)
        task.deleteLater()


def sentence(error: Exception) -> str:
    """What to tell the person about an error of background work."""
    if isinstance(error, MespError):
        return str(error)
    return f"Unexpected {type(error).__name__}: {error}"
