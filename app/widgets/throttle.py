"""Many changes, few redraws: a call that runs at most so often, on the thread of its owner."""

from collections.abc import Callable

from PySide6.QtCore import QElapsedTimer, QObject, QTimer

DRAW_EVERY_MS = 50  # at most 20 redraws a second


class Throttle(QObject):
    """Calls `action` soon after `request`, and never twice within `every_ms`; the last request is never lost."""

    def __init__(self, action: Callable[[], None], every_ms: int = DRAW_EVERY_MS, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._action, self._every_ms = action, every_ms
        self._since = QElapsedTimer()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.flush)

    def request(self) -> None:
        """Ask for a call."""
        if not self._timer.isActive():
            waited = self._since.elapsed() if self._since.isValid() else self._every_ms
            self._timer.start(max(0, self._every_ms - waited))

    def flush(self) -> None:
        """Call now, whether asked for or not."""
        self._timer.stop()
        self._action()
        self._since.start()  # counted from the end, so that a slow redraw leaves room for the rest

    def cancel(self) -> None:
        """Forget a request that was not answered yet."""
        self._timer.stop()
