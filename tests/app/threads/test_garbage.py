"""Garbage that holds Qt objects is collected by the main thread, whichever thread makes it or allocates."""

import gc
import threading

import pytest
from PySide6.QtCore import QObject

from app.threads.garbage import MainThreadGarbage


class Cycle:
    """Reaches itself, so that only the collector can free it; notes the thread that does."""

    def __init__(self, freed: list) -> None:
        self.me, self.qt, self.freed = self, QObject(), freed

    def __del__(self) -> None:
        self.freed.append(threading.current_thread())


@pytest.fixture
def garbage(qapp):
    garbage = MainThreadGarbage()
    yield garbage
    garbage.close()


def allocate() -> list:
    """As much as sets off a collection, for as long as it is held."""
    return [[] for _ in range(50_000)]


def allocate_elsewhere() -> None:
    held = []
    thread = threading.Thread(target=lambda: held.append(allocate()))
    thread.start()
    thread.join()


def test_another_thread_does_not_free_what_the_main_thread_dropped(garbage, qtbot):
    freed = []
    Cycle(freed)
    allocate_elsewhere()
    assert not freed
    held = allocate()
    qtbot.waitUntil(lambda: bool(freed), timeout=5000)
    assert held and freed == [threading.main_thread()]


def test_old_garbage_is_collected_too(garbage):
    freed = []
    cycle = Cycle(freed)
    gc.collect()  # now it is of the oldest generation
    del cycle
    for _ in range(200):
        kept = [[] for _ in range(2000)]
        garbage.collect_if_due()
        del kept
    assert freed == [threading.main_thread()]


def test_python_collects_again_afterwards(qapp):
    garbage = MainThreadGarbage()
    assert not gc.isenabled()
    garbage.close()
    assert gc.isenabled() and gc.get_freeze_count() == 0
