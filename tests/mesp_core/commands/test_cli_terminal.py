"""What the command line prints to goes away, and the signals that a terminal sends: the work is kept all the same."""

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import time

import psutil
import pytest
from command_driver import ENDLESS, PATIENCE_S, SMALL, gone, read_to_step, saved_step, stored, wait_for, wait_for_adapter

from mesp_core.adapters.adapter import load_adapter
from mesp_core.commands.cli import main
from mesp_core.runs.out_folder import OutFolder

SAVING = [*SMALL, *ENDLESS, "--save-every", "1", "--out", "out"]
FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="no /dev/full here")


@pytest.fixture
def in_terminal(command, tmp_path):
    """in_terminal(argument list) -> (its process, close): run in a window of its own, which `close` shuts."""
    opened = []

    def start(arguments):
        pid, ours = pty.fork()
        if pid == 0:
            os.chdir(tmp_path)
            os.execvpe(arguments[0], arguments, command[1] | {"TERM": "xterm"})
        opened.append((psutil.Process(pid), ours))
        return psutil.Process(pid), lambda: os.close(ours)

    yield start
    for process, ours in opened:
        with contextlib.suppress(OSError):
            os.close(ours)
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in [*process.children(recursive=True), process]:
                child.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, 0)


def assert_stopped_and_saved(out):
    """An adapter and results of the same step, of a run that was asked to stop."""
    result = stored(out)
    assert result["outcome"]["kind"] == "stopped"
    assert saved_step(out) == len(result["steps"]) >= 1
    load_adapter(out / "mesp" / "adapter")


class TestAClosedWindow:
    def test_the_run_is_saved_and_ends_well(self, in_terminal, command, tmp_path):
        process, close = in_terminal([*command[0], "train", *SAVING])
        wait_for_adapter(tmp_path / "out")
        workers = process.children(recursive=True)
        close()
        assert gone([process, *workers])
        _, status = os.waitpid(process.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert_stopped_and_saved(tmp_path / "out")

    def test_below_a_shell_which_passes_the_signal_on(self, in_terminal, command, tmp_path):
        """The command hears it twice: from the system, as it is in the foreground, and from the shell."""
        script = tmp_path / "script"
        script.write_text(f"{shlex.join([*command[0], 'train', *SAVING])}\necho $? > code\n")
        shell, close = in_terminal(["bash", "--norc", "-i"])
        # An interactive shell is told by hand what to run: it gives each job a group of its own.
        os.write(shell_input(close), f". {script}\n".encode())
        wait_for_adapter(tmp_path / "out")
        processes = shell.children(recursive=True)
        assert len(processes) == 2
        close()
        assert gone([shell, *processes])
        assert_stopped_and_saved(tmp_path / "out")

    def test_hung_up_again_and_again_it_ends_well(self, started, tmp_path):
        """To the last moment, when the table is printed and the interpreter ends."""
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        read_to_step(process, 2)
        end = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < end:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.003)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert "Traceback" not in err and "interrupted" not in err and err.count("Stopping") == 1
        assert_stopped_and_saved(tmp_path / "out")

    def test_hung_up_when_all_is_done_it_has_ended_well_all_the_same(self, tmp_path, monkeypatch, capfd):
        """The last thing a run does is to let go of its folder."""
        release = OutFolder.release

        def hung_up(folder):
            signal.raise_signal(signal.SIGHUP)
            release(folder)
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(OutFolder, "release", hung_up)
        assert main(["train", *SMALL, "--steps", "1", "--out", str(tmp_path / "out")]) == 0
        assert "interrupted" not in capfd.readouterr().err
        assert saved_step(tmp_path / "out") == 1

    def test_hung_up_twice_it_still_waits_for_the_step(self, started, tmp_path):
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        _, [worker] = read_to_step(process, 2)
        worker.suspend()  # so that the step lasts
        process.send_signal(signal.SIGHUP)
        assert "Stopping" in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        assert worker.status() == psutil.STATUS_STOPPED
        worker.resume()
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert_stopped_and_saved(tmp_path / "out")


def shell_input(close):
    """The descriptor that `close` shuts."""
    return close.__closure__[0].cell_contents


class TestNohup:
    def test_an_ignored_hangup_stays_ignored(self, started, tmp_path):
        process = started(
            "train", "--json", *SMALL, "--steps", "12", "--out", "out",
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )  # fmt: skip
        _, [worker] = read_to_step(process, 2)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            worker.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0 and err == ""
        assert stored(tmp_path / "out")["outcome"]["kind"] == "finished" and saved_step(tmp_path / "out") == 12


@pytest.fixture
def measured_before(in_shell):
    """How fast this machine is, is known already, so that no plan says that it measures it."""
    assert in_shell(f"mesp plan {' '.join(SMALL)}").returncode == 0


class TestNobodyReads:
    @pytest.mark.parametrize(
        "run",
        [
            f"mesp train ARGUMENTS >{FULL} 2>{FULL}",
            "mesp train ARGUMENTS >&- 2>&- <&-",
            "mesp train ARGUMENTS | head -3; exit ${PIPESTATUS[0]}",
            "mesp train ARGUMENTS --json 2>&1 | head -1; exit ${PIPESTATUS[0]}",
        ],
        ids=["full", "closed", "left", "left, json"],
    )
    def test_the_run_goes_on_to_its_end(self, in_shell, tmp_path, run):
        if FULL in run and not os.path.exists(FULL):
            pytest.skip(f"no {FULL} here")
        process = in_shell(run.replace("ARGUMENTS", " ".join([*SMALL, "--steps", "4", "--out", "out"])))
        assert process.returncode == 0, process.stderr
        assert "Traceback" not in process.stderr and "Exception ignored" not in process.stderr
        assert stored(tmp_path / "out")["outcome"]["kind"] == "finished" and saved_step(tmp_path / "out") == 4

    def test_where_streams_are_closed_nothing_is_printed_into_files(self, in_shell, tmp_path):
        """The first file opened would get the number of a stream that is missing."""
        data = tmp_path / "data.jsonl"
        data.write_text('{"text": "hello hello hello hello hello hello"}\n')
        content = data.read_bytes()
        run = " ".join(["train", *SMALL, "--data", str(data), "--steps", "2", "--batch-size", "1", "--out", "out"])
        assert in_shell(f"mesp {run} >&- 2>&- <&-").returncode == 0
        assert data.read_bytes() == content and stored(tmp_path / "out")["outcome"]["kind"] == "finished"

    def test_a_progress_line_on_a_terminal_that_is_gone(self, command, tmp_path):
        """A run of a session of its own hears no signal; its writes fail."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command[0], "train", *SMALL, "--steps", "15", "--save-every", "1", "--out", "out"],
            cwd=tmp_path, env=command[1] | {"TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        wait_for_adapter(tmp_path / "out")
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
        assert stored(tmp_path / "out")["outcome"]["kind"] == "finished" and saved_step(tmp_path / "out") == 15

    @needs_full
    @pytest.mark.parametrize(
        "arguments", ["plan SMALL", "plan SMALL --json", "check SMALL --methods mesp", "--version", "train --help"]
    )
    def test_a_command_whose_output_is_all_it_gives_has_failed(self, in_shell, arguments, measured_before):
        process = in_shell(f"mesp {arguments.replace('SMALL', ' '.join(SMALL))} >{FULL}")
        assert process.returncode == 1
        assert process.stderr == "mesp: the output could not be written whole (No space left on device).\n"

    def test_a_plan_whose_reader_leaves_has_not(self, in_shell, measured_before):
        process = in_shell(f"mesp plan {' '.join(SMALL)} | head -1; exit ${{PIPESTATUS[0]}}")
        assert process.returncode == 0 and process.stderr == ""


class TestCtrlCAtOnce:
    @pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.08, 0.15, 0.3, 0.5])
    def test_no_traceback(self, started, tmp_path, delay_s):
        """Wherever it comes: among the imports, while the data are read, as the worker starts."""
        process = started("train", *SMALL, "--steps", "2", "--out", "out", start_new_session=True)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        # What the interpreter prints before our first lines are done is its own; they are those of two files.
        ours = set(re.findall(r"mesp_core/([\w/]+)\.py", err))
        assert ours <= {"__init__", "__main__"} and not re.search(r"mesp_core/__main__\.py.*, in main", err), err
        if process.returncode not in (0, 1):
            assert process.returncode == -signal.SIGINT and out == ""
        if process.returncode != 0:
            assert not (tmp_path / "out").exists()
        assert wait_for(lambda: not children_of_group(process.pid))


def children_of_group(session):
    """Processes of that session which are alive."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
