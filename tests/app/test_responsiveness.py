"""mesp-gui as it is started: how soon the window is there, whether it ever stalls, and that MLX stays out of it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGEST_STALL_MS = 150  # 50 where the worker leaves a core to the window


def measure(home):
    """What tests/app/probe_window.py measures while tiny is trained with mebp and mesp."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "QT_QPA_PLATFORM": "offscreen",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
    }
    probe = subprocess.run(
        [sys.executable, str(HERE / "probe_window.py"), str(time.time())],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert probe.returncode == 0, probe.stderr
    return json.loads(probe.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The first run without a long stall, of three at most: one of ours comes every time, one of a busy machine does not."""
    for _ in range(3):
        measured = measure(tmp_path_factory.mktemp("home"))
        if measured["longest_stall_ms"] <= LONGEST_STALL_MS:
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
        print(f" {report['stalls_over_50_ms']} over 50 ms, computing {report['busiest_ms']:.0f} ms at most;", end="")
    record_property("longest_stall_ms", report["longest_stall_ms"])
    assert report["ticks"] > 200
    assert report["busiest_ms"] <= 100
    assert report["longest_stall_ms"] <= LONGEST_STALL_MS


def test_the_window_is_there_soon(report, record_property, capsys):
    with capsys.disabled():
        print(f" cold start {report['cold_start_s']:.2f} s;", end="")
    record_property("cold_start_s", report["cold_start_s"])
    assert report["cold_start_s"] <= 4.5  # 1.5 s on a quiet machine
