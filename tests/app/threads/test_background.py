"""Background tasks: the newest wins, cancelling raises inside the work, nothing outlives its owner."""

import threading
import time

import pytest

from app.threads.background import Latest, sentence
from app.threads.patient import Cancelled
from mesp_core.errors import DataError


@pytest.fixture
def latest(qtbot):
    latest = Latest()
    yield latest
    latest.close()


def test_the_result_comes_back_on_the_main_thread(latest, qtbot):
    threads = []
    latest.done.connect(lambda result: threads.append(threading.current_thread()))
    with qtbot.waitSignal(latest.done, timeout=2000) as done:
        latest.start(lambda report: threading.current_thread())
        assert latest.busy
    assert done.args[0] is not threading.main_thread()
    assert threads == [threading.main_thread()]
    assert not latest.busy


def test_errors_are_handed_over(latest, qtbot):
    with qtbot.waitSignal(latest.failed, timeout=2000) as failed:
        latest.start(lambda report: 1 / 0)
    assert isinstance(failed.args[0], ZeroDivisionError)


def test_only_the_newest_is_told(latest, qtbot):
    told, first_goes_on = [], threading.Event()
    latest.done.connect(told.append)
    latest.start(lambda report: first_goes_on.wait(5) and "first")
    with qtbot.waitSignal(latest.done, timeout=2000):
        latest.start(lambda report: "second")
    first_goes_on.set()
    qtbot.wait(50)
    assert told == ["second"]


def test_report_raises_once_it_is_cancelled(latest, qtbot):
    ended = threading.Event()

    def work(report):
        try:
            while True:
                report("going", 0.5)
        except Cancelled:
            ended.set()
            raise

    with qtbot.waitSignal(latest.progress, timeout=2000) as progress:
        latest.start(work)
    assert progress.args == ["going", 0.5]
    latest.cancel()
    assert ended.wait(2)
    assert not latest.busy


def test_close_waits_for_the_thread(qtbot):
    latest, ended = Latest(), threading.Event()

    def work(report):
        threading.Event().wait(0.2)
        ended.set()

    latest.start(work)
    latest.close()
    assert ended.is_set()


def test_sentences():
    assert sentence(DataError("line 7")) == "line 7"
    assert sentence(KeyError("x")) == "Unexpected KeyError: 'x'"


def test_work_that_hangs_keeps_nobody_waiting_and_work_that_must_not_be_lost_is_waited_for(qtbot):
    hangs, written = threading.Event(), threading.Event()
    patient, faithful = Latest(), Latest(may_hang=False)
    patient.start(lambda report: hangs.wait(30))
    faithful.start(lambda report: (threading.Event().wait(1.0), written.set()))
    start = time.monotonic()
    patient.close()
    assert time.monotonic() - start < 3 and not hangs.is_set()
    faithful.close()
    assert written.is_set()
    hangs.set()
