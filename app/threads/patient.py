"""Waiting for work that may hang for good, such that giving up on it never does. No Qt."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str, float], None]
POLL_S = 0.05
GRACE_S = 0.5  # enough for work that listens to end its child process and take away what is half done


class Cancelled(Exception):
    """Raised inside the work, out of its `report`, once it is not wanted any more."""


def patiently(work: Callable[[Report], T], report: Report, message: str = "") -> T:
    """The result of `work(report)`, run on a thread that ends with the program; its exception comes out of here.

    Every 0.05 s the caller's `report` is called from this thread with what the work has reported last, and until then with
    `message` and 0.0. It may raise to give up: then the work's own `report` raises Cancelled, and the caller's exception
    comes out of here once the work has ended, or after 0.5 s without it, when it hangs where nothing reaches it.
    """
    future: Future[T] = Future()
    latest, given_up = (message, 0.0), False

    def note(said: str, fraction: float) -> None:
        nonlocal latest
        if given_up:
            raise Cancelled
        latest = (said, fraction)

    def run() -> None:
        try:
            future.set_result(work(note))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        while not wait([future], timeout=POLL_S).done:
            report(*latest)
    except BaseException:
        given_up = True
        wait([future], timeout=GRACE_S)
        raise
    return future.result()
