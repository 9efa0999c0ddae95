"""Signals that ask us to end: heeded or left alone, made a KeyboardInterrupt, a stop, or an end at once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from mesp_core.processes.interruption import ENDING, StopRequests, heeded, interruptible, on_signals, unheard


def handlers():
    return {number: signal.getsignal(number) for number in (*ENDING, signal.SIGXCPU)}


@pytest.fixture(autouse=True)
def as_before():
    before = handlers()
    yield
    after = handlers()
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize("number", ENDING)
def test_the_first_is_a_keyboard_interrupt_and_those_after_it_break_nothing_off(number):
    cleaned = []
    with pytest.raises(KeyboardInterrupt, match=number.name), interruptible():
        try:
            signal.raise_signal(number)
        finally:
            for other in ENDING:
                signal.raise_signal(other)
            cleaned.append(True)
    assert cleaned


def test_what_we_were_told_to_ignore_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert heeded() == [signal.SIGINT, signal.SIGTERM]
        heard = []
        with interruptible(), on_signals(heard.append):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_others_are_heard_where_they_are_named():
    heard = []
    with on_signals(heard.append, also=[signal.SIGXCPU]):
        signal.raise_signal(signal.SIGXCPU)
    assert heard == [signal.SIGXCPU]


def test_unheard_but_for_what_is_inside_of_it():
    heard = []
    with interruptible(), unheard():
        with on_signals(heard.append):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    with on_signals(heard.append):
        pass
    assert heard == [signal.SIGHUP]


def test_a_request_that_comes_just_before_it_gets_its_meaning_is_not_lost():
    heard = []
    with interruptible(), unheard():
        signal.raise_signal(signal.SIGTERM)
        with on_signals(heard.append):
            assert heard == [signal.SIGTERM]
    with pytest.raises(KeyboardInterrupt, match="SIGHUP"), unheard():
        signal.raise_signal(signal.SIGHUP)
        with interruptible():
            pytest.fail("it was not heard")


def test_outside_of_the_main_thread_nothing_is_changed():
    before, seen = handlers(), []

    def work():
        with interruptible(), on_signals(seen.append), unheard():
            seen.append(handlers() == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


@pytest.mark.parametrize(
    "numbers, told",
    [
        (["SIGHUP"], "stop"),
        (["SIGHUP", "SIGHUP", "SIGHUP"], "stop"),
        (["SIGINT", "SIGINT"], "stop kill"),
        (["SIGTERM", "SIGTERM"], "stop kill"),
        (["SIGINT", "SIGHUP"], "stop"),
        (["SIGHUP", "SIGINT"], "stop kill"),
        (["SIGINT", "SIGTERM"], "stop"),
    ],
)
def test_one_stops_and_the_same_again_ends(numbers, told):
    heard = []
    requests = StopRequests(lambda: heard.append("stop"), lambda: heard.append("kill"))
    for name in numbers:
        requests(signal.Signals[name])
    assert heard == told.split()


def test_a_process_in_its_last_block_keeps_its_exit_code():
    """Even while the interpreter ends, which gives signals their first meaning back."""
    code = (
        "import os, signal, sys, weakref\n"
        "from mesp_core.processes.interruption import last_block\n"
        "with last_block():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()):\n"
        "        [kill(pid, number) for number in (1, 2, 15)]\n"
        "sys.late = Late()\n"
        "sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.getcwd()}).returncode == 7
