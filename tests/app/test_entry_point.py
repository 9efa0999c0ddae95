"""`mesp-gui` on the command line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.main import main

ROOT = Path(__file__).resolve().parent.parent.parent


def test_version_and_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("mesp-gui ")
    with pytest.raises(SystemExit) as ended:
        main(["--no-such-option"])
    assert ended.value.code == 2


def hears(process, number):
    """Whether it handles that signal by now, as Linux tells; elsewhere, whether it has had the time to."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        time.sleep(3)
        return True
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP], [signal.SIGHUP, signal.SIGHUP]],
    ids=lambda numbers: "+".join(number.name for number in numbers),
)
def test_a_polite_signal_closes_the_window_and_exits_well(numbers, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen", "HOME": str(tmp_path)}
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    started = subprocess.Popen([sys.executable, "-m", "app.main"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        # SIGTERM's handler is ours alone: Python has one for SIGINT from the start.
        while not hears(started, signal.SIGTERM) and time.monotonic() < end:
            assert started.poll() is None, started.stderr.read()
            time.sleep(0.02)
        started.stderr.close()  # as where the terminal is gone that it was started from
        for number in numbers:
            started.send_signal(number)
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
