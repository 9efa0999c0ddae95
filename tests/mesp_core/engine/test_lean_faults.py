"""What can go wrong while lean reads weights and writes block inputs: told in words, and no adapter passes for whole."""

import resource
import subprocess
import sys

import pytest
from session_driver import ENDLESS, running, step_of

from mesp_core.adapters.adapter import load_adapter
from mesp_core.engine.block_inputs import IN_MEMORY, file_system
from mesp_core.errors import CheckpointError
from mesp_core.runs import events
from mesp_core.runs.session import Session
from mesp_core.training import job_run, worker

SMALL = ["train", "--seq-len", "32", "--rank", "4", "--steps", "3"]


def replaced(file):
    """Another file under the same name, of the same bytes."""
    new = file.with_name("new")
    new.write_bytes(file.read_bytes())
    new.replace(file)


class TestACheckpointThatChanges:
    @pytest.mark.parametrize("act", [replaced, lambda file: file.unlink()], ids=["replaced", "removed"])
    def test_ends_the_run_and_what_was_learnt_is_kept(self, act, make_job, tiny_copy):
        file = tiny_copy / "model.safetensors"
        session = Session(make_job(model=str(tiny_copy), method="lean", steps=ENDLESS))
        for event in running(session):
            if isinstance(event, events.Step) and event.step == 2:
                act(file)
        outcome = session.outcome
        assert (outcome.kind, outcome.exit_code, outcome.ok) == ("checkpoint", 1, False)
        assert outcome.message.startswith(f"lean: {file}: changed or removed while it was being read.")
        assert "\n" not in outcome.message and "Traceback" not in outcome.message
        assert outcome.message.endswith(f"The adapter of step {outcome.steps} is in {outcome.adapter}.")
        assert outcome.adapter == session.job.adapter_folder and step_of(outcome.adapter) == outcome.steps >= 2

    def test_it_replaces_what_was_saved_before(self, make_job, tiny_copy):
        session = Session(make_job(model=str(tiny_copy), method="lean", steps=ENDLESS, save_every=2))
        for event in running(session):
            if isinstance(event, events.Step) and event.step == 3:
                replaced(tiny_copy / "model.safetensors")
        assert session.outcome.kind == "checkpoint" and session.outcome.adapter == session.job.adapter_folder
        assert step_of(session.outcome.adapter) == session.outcome.steps >= 3
        assert len(load_adapter(session.outcome.adapter)[0]) == 28
        assert [path.name for path in session.outcome.adapter.parent.iterdir()] == ["adapter"]


class TestAScratchFolder:
    @pytest.fixture
    def refused(self, mesp):
        """refused(code, *arguments) -> the one sentence or two that a run ends with."""

        def run(code, *arguments):
            process = mesp(*SMALL, "--out", "out", *arguments)
            assert process.returncode == code, process.stderr
            [line] = process.stderr.splitlines()
            assert "Traceback" not in line and "step 1/" not in process.stdout
            assert list(mesp.cwd.rglob("adapter*")) == []
            return line

        return run

    def test_that_is_a_file(self, refused, tmp_path):
        file = tmp_path / "scratch"
        file.write_text("")
        said = refused(2, "--method", "lean:inputs=disk:tmpfs", "--scratch-dir", file)
        assert f"scratch_dir: {file} cannot be written to (File exists)" in said and "--scratch-dir" in said

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
    def test_that_cannot_be_made(self, refused):
        said = refused(2, "--method", "mesp:inputs=disk:tmpfs", "--scratch-dir", "/proc/none/scratch")
        assert "scratch_dir: /proc/none/scratch cannot be written to (" in said

    def test_in_memory(self, refused, tmp_path):
        shm = "/dev/shm"
        if sys.platform != "linux" or file_system(shm) not in IN_MEMORY:
            pytest.skip("needs a tmpfs at /dev/shm")
        said = refused(2, "--method", "lean:inputs=disk", "--scratch-dir", f"{shm}/mesp-test-of-{tmp_path.name}")
        assert "is on a tmpfs, which is memory" in said and "the option tmpfs" in said

    def test_whose_disk_is_full(self, command, tmp_path):
        """Stood in for by a limit on the size of files, which the system also refuses to pass when the room is claimed."""
        arguments = ["--seq-len", "128", "--max-samples", "4", "--steps", "3", "--method", "lean:inputs=disk:tmpfs"]
        limit = 4 * 128 * 256  # bytes: four block inputs of up to 128 tokens need four times as many
        process = subprocess.run(
            [*command[0], "train", *arguments, "--scratch-dir", tmp_path / "scratch", "--out", tmp_path / "out"],
            env=command[1],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        assert process.returncode == 1, process.stderr
        [line] = process.stderr.splitlines()
        assert "The block inputs of a step need 0." in line and "MB are free" in line and "--scratch-dir" in line
        assert list((tmp_path / "scratch").iterdir()) == [] and list((tmp_path / "out").rglob("adapter*")) == []

    def test_check_says_so_too(self, mesp, tmp_path):
        file = tmp_path / "scratch"
        file.write_text("")
        methods = "lean:inputs=disk:tmpfs"
        process = mesp("check", "--seq-len", "16", "--methods", methods, "--scratch-dir", file)
        assert process.returncode == 2, process.stderr
        assert f"mesp: scratch_dir: {file} cannot be written to" in process.stderr.splitlines()[-1]


class TestClosing:
    """The worker gives a method's files back at the end, whatever the end is."""

    @pytest.fixture
    def closed(self, monkeypatch, make_job):
        """closed(act) -> what happened in a run in this process; `act` is called at the first batch."""

        class Silent:
            stop_asked = type("Never", (), {"is_set": staticmethod(lambda: False)})

            def say(self, event):
                pass

            def log(self, level, message):
                pass

            def wait_for_turn(self):
                return True

        def run(act):
            heard, right = [], job_run.build_method

            def watched(*arguments):
                method, kernels = right(*arguments)
                backpropagate, close = method.backpropagate, method.close
                method.backpropagate = lambda *step: act() or heard.append("step") or backpropagate(*step)
                method.close = lambda: heard.append("closed") or close()
                return method, kernels

            monkeypatch.setattr(job_run, "build_method", watched)
            job = make_job(method="lean", steps=2)
            try:
                worker.run(job, Silent())
            except CheckpointError:
                heard.append("failed")
            return heard, job.adapter_folder.exists()

        return run

    def test_at_the_end(self, closed):
        assert closed(lambda: None) == (["step", "step", "closed"], True)

    def test_after_an_error(self, closed):
        def fail():
            raise CheckpointError("gone")

        assert closed(fail) == (["closed", "failed"], False)
