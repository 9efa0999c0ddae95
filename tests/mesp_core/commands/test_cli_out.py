"""`--out` on the command line: what is there is refused before any work, and one run at a time writes to it."""

import contextlib
import json
import os
import signal
import subprocess
import time

import psutil
import pytest
from command_driver import ENDLESS, PATIENCE_S, SMALL, gone, read_to_step, saved_step, stored, wait_for_adapter
from session_driver import step_of

from mesp_core.adapters.adapter import load_adapter

RUN = ["train", "--json", *SMALL, *ENDLESS, "--out", "out"]


def refused(process):
    """What a command says that is refused before any work."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, err
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["error"]
    assert err.count("\n") == 1 and "Traceback" not in err
    return err


def test_what_is_there_is_refused_and_stays(started, tmp_path):
    file = tmp_path / "out" / "mesp" / "adapter" / "notes.txt"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    # Nothing was read yet: the data of that name, which are not there, are not missed.
    assert "holds mesp, which" in refused(started(*RUN, "--data", "none.jsonl"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file] and file.read_text() == "mine"


@pytest.mark.parametrize("name", [b"caf\xe9", b"out/file/deeper"])
def test_where_no_adapter_can_go_is_refused(started, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    refused(started(*RUN[:-1], os.fsdecode(name)))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_runs_adapter_is_not_overwritten(started, tmp_path):
    process = started(*RUN, "--save-every", "1")
    _, workers = read_to_step(process, 2)
    for one in [*workers, psutil.Process(process.pid)]:
        one.kill()
    process.communicate()
    assert gone(workers)
    before = saved_step(tmp_path / "out")
    assert "mesp/adapter, the adapter of another run" in refused(started(*RUN))
    assert saved_step(tmp_path / "out") == before


def test_two_runs_at_once(started, tmp_path):
    """The second is refused while the first lives, and while only its worker does; when that ended too, it is not."""
    first = started(*RUN)
    _, [worker] = read_to_step(first, 1)
    assert "another run is writing to out" in refused(started(*RUN))
    worker.suspend()
    first.kill()
    first.communicate()
    assert "another run is writing to out" in refused(started(*RUN))
    worker.kill()
    assert gone([worker])
    again = started(*RUN[:-4], "--steps", "2", "--out", "out")
    _, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, err
    assert saved_step(tmp_path / "out") == 2


def test_a_file_put_beside_the_adapter_while_the_run_goes_stays(started, tmp_path):
    process = started(*RUN, "--save-every", "1")
    wait_for_adapter(tmp_path / "out")
    folder = tmp_path / "out" / "mesp" / "adapter"
    while True:  # the folder is away for a moment at each save
        with contextlib.suppress(FileNotFoundError):
            (folder / "notes.txt").write_text("mine")
            break
    read_to_step(process, saved_step_or(folder) + 5)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert (folder / "notes.txt").read_text() == "mine"
    load_adapter(folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["adapter"]


def saved_step_or(folder, otherwise=1):
    """The step of the adapter as it is at this moment, if it can be read."""
    with contextlib.suppress(OSError, ValueError):
        return step_of(folder)
    return otherwise


def test_an_adapters_place_that_is_lost_while_the_run_goes(started, tmp_path):
    """Each save that fails is told and the run goes on; the last one goes elsewhere, and that is named."""
    process = started(
        *RUN[:-4], "--steps", "12", "--save-every", "3", "--out", "out", env={"TMPDIR": str(tmp_path / "temp")}
    )
    read_to_step(process, 1)
    place = tmp_path / "out" / "mesp"
    deadline = time.monotonic() + PATIENCE_S
    while place.is_dir() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            place.rename(tmp_path / "moved")
    place.write_text("a file")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "Traceback" not in err
    warnings = [values for line in out.splitlines() if (values := json.loads(line)).get("level") == "warning"]
    assert any("The run goes on" in values["message"] for values in warnings)
    result = stored(tmp_path / "out")
    assert len(result["steps"]) == 12
    message = result["outcome"]["message"]
    assert "adapter cannot be written" in message and "It was saved in " in message
    [rescued] = [word.rstrip(".") for word in message.split() if "rescued" in word][:1]
    tree, _ = load_adapter(type(tmp_path)(rescued))
    assert len(tree) == 28
    assert place.read_text() == "a file"


def test_no_room_for_the_adapter_is_found_out_before_training(mesp, tmp_path):
    """A file system that says it is full, as seen by the worker."""
    lie = "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000)\n"
    (tmp_path / "lie").mkdir()
    (tmp_path / "lie" / "sitecustomize.py").write_text(lie)
    process = mesp(*RUN[:1], *SMALL, "--steps", "2", "--out", "out", python_path=tmp_path / "lie")
    assert process.returncode == 1
    assert "the adapter will need" in process.stderr and "0.0 MB are free" in process.stderr
    assert "step 1" not in process.stdout and not (mesp.cwd / "out").exists()


def test_a_disk_that_fills_while_the_run_goes(command, tmp_path):
    """A limit on the size of files stands for it: ids and results fit, the adapter does not."""
    process = subprocess.run(
        ["bash", "-c", 'ulimit -f 100; exec "$0" "$@"', *command[0], "train", *SMALL, "--steps", "4", "--save-every", "2",
         "--out", "out"],
        cwd=tmp_path, env=command[1] | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert process.returncode == 1 and "Traceback" not in process.stderr
    # After step 2; after the last one there is no going on: the run fails.
    assert process.stderr.count("The run goes on; the adapter is saved again later.") == 1
    assert len(stored(tmp_path / "out")["steps"]) == 4
    assert not (tmp_path / "out" / "mesp").exists()
