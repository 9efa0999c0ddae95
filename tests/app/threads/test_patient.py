"""Work that may hang: its result, its progress, and giving up on it."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.threads.patient import GRACE_S, POLL_S, Cancelled, patiently

ROOT = Path(__file__).resolve().parents[3]


class GivenUp(Exception):
    pass


def give_up(message, fraction):
    raise GivenUp


def test_the_result_and_the_exception_of_the_work_come_out():
    assert patiently(lambda report: 3, give_up) == 3  # done before anybody was asked
    with pytest.raises(ZeroDivisionError):
        patiently(lambda report: 1 / 0, lambda message, fraction: None)


def test_progress_comes_from_the_callers_thread_and_goes_on_while_the_work_hangs():
    told, go_on = [], threading.Event()

    def work(report):
        go_on.wait(5)
        report("half", 0.5)
        finished.wait(5)

    finished = threading.Event()

    def report(message, fraction):
        told.append((message, fraction))
        assert threading.current_thread() is threading.main_thread()
        if len(told) == 2:
            go_on.set()
        if told.count(("half", 0.5)) == 2:
            finished.set()

    patiently(work, report, "Beginning")
    assert told[:2] == [("Beginning", 0.0)] * 2 and told[-2:] == [("half", 0.5)] * 2


def test_giving_up_on_work_that_hangs_does_not_wait_for_it():
    hangs = threading.Event()
    start = time.monotonic()
    with pytest.raises(GivenUp):
        patiently(lambda report: hangs.wait(30), give_up)
    assert time.monotonic() - start < POLL_S + GRACE_S + 2
    hangs.set()


def test_work_that_listens_has_tidied_up_when_it_was_given_up():
    tidied = []

    def work(report):
        try:
            while True:
                report("going on", 0.0)
                time.sleep(0.01)
        except Cancelled:
            time.sleep(0.1)
            tidied.append(True)
            raise

    with pytest.raises(GivenUp):
        patiently(work, give_up)
    assert tidied


def test_work_that_hangs_does_not_keep_the_program_alive():
    program = """
import threading
from app.threads.patient import patiently

def give_up(message, fraction):
    raise KeyError

try:
    patiently(lambda report: threading.Event().wait(), give_up)
except KeyError:
    print("given up")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "given up\n"), done.stderr
