"""A parent and a child of ours: what is asked, what is replied, and every way in which the child can end."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from mesp_core import errors
from mesp_core.errors import MespError
from mesp_core.processes.parent_side import LAST_WORDS, Child, ask

HEAD = """
import os, signal, subprocess, sys, time
from mesp_core import errors
from mesp_core.processes.child_side import serve
"""
PATIENCE_S = 60.0


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(body, before="") -> the name of a module that serves with `body` as its work on `request`, by `say`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(body, before=""):
        lines = "\n".join("    " + line for line in body.strip().splitlines())
        (tmp_path / "kid.py").write_text(f"{HEAD}\n{before}\ndef work(request, say):\n{lines}\n\nserve(work)\n")
        return "kid"

    return write


def gone(pid):
    end = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not psutil.pid_exists(pid)


def died(module, complaint="It failed"):
    """The text of the error that a child's end is told by."""
    with pytest.raises(MespError) as caught:
        ask(module, {}, complaint)
    assert type(caught.value) is MespError
    return str(caught.value)


class TestReplies:
    def test_one_reply_to_one_request(self, module):
        assert ask(module("say({'back': request['text'] * 2})"), {"text": "ä\n"}, "It failed") == {"back": "ä\nä\n"}

    def test_many_come_one_by_one(self, module):
        name = module("for n in range(3):\n    say({'n': n, 'at': time.time()})\n    time.sleep(0.5)")
        with Child(name) as child:
            late = [(reply["n"], time.time() - reply["at"]) for reply in child.replies({}, "It failed")]
        assert [n for n, _ in late] == [0, 1, 2] and all(seconds < 0.45 for _, seconds in late)

    def test_none_at_all_is_an_error_for_who_asks_for_one(self, module):
        assert died(module("pass")) == "It failed: the process ended with exit code 0."

    def test_noise_on_stdout_does_no_harm(self, module):
        """From Python, from below it, and from before the child could put it elsewhere."""
        body = "print('noise')\nsys.stdout.flush()\nos.write(1, b'noise\\n')\nsubprocess.run(['echo', 'noise'])\n"
        noise = ["5", "[]", "{}", "null", '{"reply"', '{"reply": {}, "more": 1}', '{"n": 2}']
        name = module(
            body + "say({'n': 1})\nprint('more')\nsay({'n': 2})", before=f"print({chr(10).join(noise)!r}, flush=True)"
        )
        with Child(name) as child:
            assert list(child.replies({}, "It failed")) == [{"n": 1}, {"n": 2}]
        assert sorted(child.printed) == sorted([*noise, *["noise"] * 3, "more"])

    def test_a_flood_of_warnings_stops_nobody(self, module):
        name = module("for n in range(20000):\n    print('warning', n, file=sys.stderr)\nsay({'n': 1})")
        with Child(name) as child:
            assert list(child.replies({}, "It failed")) == [{"n": 1}]
        assert len(child.printed) == LAST_WORDS and child.printed[-1] == "warning 19999"


class TestErrors:
    def test_of_ours_come_as_they_are(self, module):
        """Also one that a child raises after its first replies."""
        name = module("say({'n': 1})\nraise errors.DataError('rows.jsonl, line 7: broken – ä.')")
        with Child(name) as child, pytest.raises(errors.DataError) as caught:
            list(child.replies({}, "It failed"))
        assert str(caught.value) == "rows.jsonl, line 7: broken – ä."
        assert caught.value.kind == "data" and "in work" in caught.value.__notes__[0]

    def test_any_other_is_named_with_what_failed(self, module):
        name = module("{}['a']")
        assert died(name, "Tokenising F failed") == "Tokenising F failed: unexpected KeyError: 'a'"


class TestEnds:
    def test_by_an_exit_code(self, module):
        name = module("for n in range(5):\n    print('word', n, file=sys.stderr)\nsys.stderr.flush()\nos._exit(7)")
        assert died(name) == "It failed: the process ended with exit code 7. Its last words: word 2 / word 3 / word 4"

    @pytest.mark.parametrize(
        ("number", "says"),
        [
            ("SIGKILL", "SIGKILL; the system does that when memory runs out."),
            ("SIGABRT", "SIGABRT; Metal does that when memory runs out."),
            ("SIGSEGV", "SIGSEGV."),
        ],
    )
    def test_by_a_signal(self, module, number, says):
        assert died(module(f"os.kill(os.getpid(), signal.{number})")) == f"It failed: the process was killed by {says}"

    def test_by_the_systems_limit_on_processor_time(self, module, monkeypatch):
        monkeypatch.setattr("resource.getrlimit", lambda which: (4, 300))
        name = module("os.kill(os.getpid(), signal.SIGXCPU)")
        assert "SIGXCPU: it used the 4 s of processor time that the system's limit allows" in died(name)

    def test_by_a_signal_that_has_no_name(self, module):
        number = signal.SIGRTMIN + 1
        assert f"was killed by signal {number}." in died(module(f"os.kill(os.getpid(), {number})"))

    def test_before_it_could_read_the_request(self, module):
        name = module("pass", before="print('no such library', file=sys.stderr)\nsys.exit(3)")
        assert died(name) == "It failed: the process ended with exit code 3. Its last words: no such library"

    def test_a_module_that_is_not_there(self, module):
        assert "exit code 1. Its last words: " in died("no_such_module") and "no_such_module" in died("no_such_module")


class TestBreakingOff:
    SLOW = "say({'pid': os.getpid()})\ntime.sleep(1000)"

    def test_leaving_the_iteration_ends_the_child(self, module):
        with Child(module(self.SLOW)) as child:
            for reply in child.replies({}, "It failed"):
                assert reply == {"pid": child.pid} and child.alive
                break
        assert not child.alive and not psutil.pid_exists(child.pid)

    def test_what_is_raised_while_it_is_waited_for_comes_out(self, module):
        """It is asked at once, then about every 0.1 s."""
        times = []

        def on_wait():
            times.append(time.monotonic())
            if len(times) == 5:
                raise InterruptedError

        with Child(module("time.sleep(1000)")) as child, pytest.raises(InterruptedError):
            list(child.replies({}, "It failed", on_wait))
        assert not psutil.pid_exists(child.pid) and 0.3 < times[-1] - times[0] < 10

    @pytest.mark.parametrize("moment", ["before it began", "while it works"])
    def test_a_child_ends_when_its_parent_is_gone(self, module, tmp_path, moment):
        name = module(self.SLOW, before="time.sleep(1)" if moment.startswith("before") else "")
        code = f"""
from mesp_core.processes.parent_side import Child
with Child({name!r}) as child:
    print(child.pid, flush=True)
    for reply in child.replies({{}}, "It failed"):
        print("replied", flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment()) as parent:
            pid = int(parent.stdout.readline())
            if moment == "while it works":
                assert parent.stdout.readline() == "replied\n"
            assert psutil.pid_exists(pid)
            parent.kill()
        assert gone(pid)

    def test_one_whose_streams_a_process_of_its_own_holds_open(self, module):
        """It is not waited for."""
        name = module("holder = subprocess.Popen(['sleep', '30'])\nsay({'pid': holder.pid})\nos._exit(5)")
        start = time.monotonic()
        with Child(name) as child, pytest.raises(MespError, match="exit code 5"):
            for reply in child.replies({}, "It failed"):
                holder = reply["pid"]
        assert time.monotonic() - start < 20
        os.kill(holder, signal.SIGKILL)


def environment():
    root = os.path.dirname(os.path.dirname(errors.__file__))
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ["PYTHONPATH"]])}


def test_a_child_can_be_run_by_hand(module):
    """Its stdin stays open until it has replied."""
    name = module("say({'n': request['n'] + 1})")
    with subprocess.Popen(
        [sys.executable, "-m", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as child:
        child.stdin.write('{"n": 1}\n')
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"reply": {"n": 2}}
        assert child.wait(PATIENCE_S) == 0
