"""Driving the command line from outside: arguments of a small run, reading its events, waiting for what it does."""

import contextlib
import json
import time

import psutil
from session_driver import step_of

from mesp_core.runs import events

SMALL = ["--seq-len", "32", "--rank", "4"]
ENDLESS = ["--steps", "100000"]
PATIENCE_S = 90.0  # for what takes a second on an idle machine


def read_to_step(process, number, alive=1):
    """Read its JSON events up to that step; what was read, and the workers that are alive then."""
    heard = []
    for line in process.stdout:
        heard.append(events.parse_event(line))
        if isinstance(heard[-1], events.Step) and heard[-1].step == number:
            workers = psutil.Process(process.pid).children(recursive=True)
            assert len(workers) == alive
            return heard, workers
    raise AssertionError(f"ended before step {number}: {process.stderr.read()}")


def gone(processes, timeout=PATIENCE_S):
    """Whether they end within that many seconds; one that nobody has waited for yet has ended too."""
    return bool(wait_for(lambda: not any(map(_alive, processes)), timeout))


def _alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition, timeout=PATIENCE_S):
    """What `condition` returns once that is true; else what it returns at the end of the time."""
    end = time.monotonic() + timeout
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def wait_for_adapter(out, method="mesp"):
    """Wait until a run with `--save-every 1` has saved a first time."""
    assert wait_for((out / method / "adapter" / "adapter_config.json").exists), "no adapter was saved"


def stored(out, method="mesp"):
    """The result of a method as results.json has it."""
    return json.loads((out / "results.json").read_text())["methods"][method]


def saved_step(out, method="mesp"):
    """The step of a method's adapter, as the adapter itself says."""
    return step_of(out / method / "adapter")
