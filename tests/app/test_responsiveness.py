"""mesp-gui as it is started: how soon the window is there, whether it ever stalls, and that MLX stays out of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGEST_STALL_MS = 150  # 50 where the worker leaves a core to the window
# A process beside it that only looks at the clock, as often as the probe does. Where that one comes so late, the machine
# is too busy to tell our stalls from its own.
BUSY_MS = 75
CONTROL = """
import time
longest, last = 0.0, time.perf_counter()
try:
    print(flush=True)
    while True:
        time.sleep(0.005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
except KeyboardInterrupt:
    print(1000 * longest)
"""


def measure(home):
    """What tests/app/probe_window.py measures while tiny is trained with mebp and mesp."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "QT_QPA_PLATFORM": "offscreen",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
    }
    control = subprocess.Popen([sys.executable, "-c", CONTROL], stdout=subprocess.PIPE, text=True)
    control.stdout.readline()
    try:
        probe = subprocess.run(
            [sys.executable, str(HERE / "probe_window.py"), str(time.time())],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=150,
        )
    finally:
        control.send_signal(signal.SIGINT)
        late_ms = float(control.communicate()[0])
    assert probe.returncode == 0, probe.stderr
    return json.loads(probe.stdout.splitlines()[-1]) | {"control_ms": late_ms}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The first run without a long stall, of three at most: one of ours comes every time, one of a busy machine does not."""
    for _ in range(3):
        measured = measure(tmp_path_factory.mktemp("home"))
        if measured["longest_stall_ms"] <= LONGEST_STALL_MS or measured["control_ms"] > BUSY_MS:
            break
    return measured


def test_the_run_was_a_real_one(report):
    assert not report["problem"]
    assert report["methods"] == {"mebp": "finished", "mesp": "finished"}


def test_mlx_is_never_loaded_into_the_app(report):
    assert report["mlx_loaded"] == []


def test_the_main_thread_never_stalls(report, record_property, capsys):
    with capsys.disabled():
        print(f" longest stall {report['longest_stall_ms']:.0f} ms in {report['ticks']} ticks,", end="")
        print(f" {report['stalls_over_50_ms']} over 50 ms, computing {report['busiest_ms']:.0f} ms at most,", end="")
        print(f" {report['control_ms']:.0f} ms beside it;", end="")
    record_property("longest_stall_ms", report["longest_stall_ms"])
    assert report["ticks"] > 200
    assert report["busiest_ms"] <= 100
    assert report["longest_stall_ms"] <= LONGEST_STALL_MS or report["control_ms"] > BUSY_MS


def test_the_window_is_there_soon(report, record_property, capsys):
    with capsys.disabled():
        print(f" cold start {report['cold_start_s']:.2f} s;", end="")
    record_property("cold_start_s", report["cold_start_s"])
    assert report["cold_start_cpu_s"] <= 4.5  # 1.5 s on a quiet machine, nearly all of it computing
