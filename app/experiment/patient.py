"""Waiting for work that cannot be interrupted, such that giving up on it never waits."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

from app.background import Report

T = TypeVar("T")
POLL_S = 0.05


def patiently(work: Callable[[], T], report: Report, message: str = "") -> T:
    """The result of `work()`, run on a thread that ends with the program; meanwhile `report` may raise to give up."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not wait([future], timeout=POLL_S).done:
        report(message, 0.0)
    return future.result()
