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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_closes_the_window_and_exits_well(number, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen", "HOME": str(tmp_path)}
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    started = subprocess.Popen([sys.executable, "-m", "app.main"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        time.sleep(3)
        assert started.poll() is None, started.stderr.read()
        started.send_signal(number)
        assert started.wait(15) == 0
    finally:
        started.kill()
        started.stderr.close()
