"""The signals that ask us to end: which of them count, and what they do before and while something runs."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_came_early: list[signal.Signals] = []  # came in a block of `unheard`, before one of `on_signals` in it


def heeded() -> list[signal.Signals]:
    """Those of ENDING that we were not told to ignore, as `nohup` tells us of SIGHUP."""
    return [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def on_signals(act: Callable[[signal.Signals], None], also: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """Call `act` when a heeded signal comes, or one of `also`, for the time of the block.

    Also when it came just before, in an `unheard` block around this one: no request to end is lost between the two.
    Does nothing outside of the main thread, where Python hears no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        act(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in [*heeded(), *also]}
    try:
        early = list(_came_early)
        _came_early.clear()
        for number in early:
            act(number)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make the first signal a KeyboardInterrupt, so that what was begun is cleaned away.

    Those that follow are left unheard: they would break off the cleaning, which takes a moment only.
    """
    interrupted = False

    def interrupt(number: signal.Signals) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt(number.name)

    with on_signals(interrupt):
        yield


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let heeded signals do nothing for the time of the block, except where `on_signals` in it gives them a meaning."""
    with on_signals(_came_early.append):
        try:
            yield
        finally:
            _came_early.clear()


@contextlib.contextmanager
def last_block() -> Iterator[None]:
    """As `unheard`, and to the end of the process: what it has done and told is not to become another exit code.

    Ignored signals alone survive the end of the interpreter, which resets handlers; before, children would inherit that.
    """
    numbers = heeded()
    try:
        for number in numbers:
            signal.signal(number, lambda number, frame: _came_early.append(signal.Signals(number)))
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


class StopRequests:
    """Turns the first signal into a polite stop, and one of its kind again, or a Ctrl-C after any, into an end at once.

    SIGHUP counts once: closing a terminal's window sends it twice, from the system and from the shell.
    """

    def __init__(self, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        self._stop, self._kill = stop, kill
        self._heard: set[signal.Signals] = set()

    def __call__(self, number: signal.Signals) -> None:
        """A signal came."""
        first = not self._heard
        again = number in self._heard and number != signal.SIGHUP
        self._heard.add(number)
        if first:
            self._stop()
        elif again or number == signal.SIGINT:
            self._kill()
