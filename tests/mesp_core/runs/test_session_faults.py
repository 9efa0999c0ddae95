"""What goes wrong around a worker while it trains, and what is kept of its run."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess

import psutil
import pytest
from command_driver import ENDLESS as ENDLESS_ARGUMENTS
from command_driver import PATIENCE_S, SMALL, gone, read_to_step, saved_step, stored
from session_driver import ENDLESS, follow, step_of, steps_of

from mesp_core.adapters.adapter import load_adapter
from mesp_core.processes.start import start_module
from mesp_core.runs import events
from mesp_core.runs.session import Session


def logged(heard):
    return [event.message for event in heard if isinstance(event, events.Log)]


class TestSignalsToTheWorker:
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"])
    def test_it_ends_after_the_step_saves_and_says_why(self, make_job, name):
        session = Session(make_job(steps=ENDLESS))
        heard = follow(session, 3, lambda: os.kill(session.pid, signal.Signals[name]))
        outcome = session.outcome
        assert (outcome.kind, outcome.exit_code) == ("stopped", 0), outcome.message
        assert 3 <= outcome.steps == len(steps_of(heard)) < 30
        assert step_of(outcome.adapter) == outcome.steps
        assert any(name in message for message in logged(heard))

    def test_of_the_command_line(self, started, tmp_path):
        process = started("train", "--json", *SMALL, *ENDLESS_ARGUMENTS, "--out", "out")
        _, [worker] = read_to_step(process, 2)
        worker.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert stored(tmp_path / "out")["outcome"]["kind"] == "stopped"
        assert saved_step(tmp_path / "out") == len(stored(tmp_path / "out")["steps"])

    def test_one_that_waits_for_its_turn_hears_it_too(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        for event in session.run():
            if isinstance(event, events.Loaded):
                session.hand_out(1)
            elif isinstance(event, events.Step):
                os.kill(session.pid, signal.SIGTERM)
        assert (session.outcome.kind, session.outcome.steps) == ("stopped", 1)
        assert step_of(session.outcome.adapter) == 1


class TestALimitOnProcessorTime:
    @pytest.mark.parametrize("soft", [4, None], ids=["with a warning", "without one"])
    def test_it_is_named(self, command, tmp_path, soft):
        """Where the system warns first, the run ends as if stopped, and says why; where it does not, it is killed."""
        hard = 300 if soft else 4

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (soft or hard, hard))

        process = subprocess.run(
            [*command[0], "train", "--json", *SMALL, *ENDLESS_ARGUMENTS, "--save-every", "1", "--out", "out"],
            cwd=tmp_path, env=command[1],
            capture_output=True, text=True, timeout=180, preexec_fn=limit,
        )  # fmt: skip
        said = process.stdout + process.stderr
        outcome = stored(tmp_path / "out")["outcome"]
        if soft:
            assert process.returncode == 0 and outcome["kind"] == "stopped" and "processor time" in said
        else:
            assert process.returncode == 1 and outcome["kind"] == "crashed"
            assert "SIGKILL" in outcome["message"] and "4 s of processor time" in outcome["message"]
        load_adapter(tmp_path / "out" / "mesp" / "adapter")


class TestAccumulation:
    """65,536 micro-batches are minutes: what ends a run is looked at between them, and the step is dropped."""

    def test_the_time_limit(self, make_job):
        session = Session(make_job(steps=3, grad_accumulation=65536, time_limit_s=1.0))
        heard = follow(session)
        assert (session.outcome.kind, session.outcome.steps, session.outcome.adapter) == ("stopped", 0, None)
        assert any("time limit of 1 s" in message for message in logged(heard)) and steps_of(heard) == []

    def test_the_first_signal(self, started, tmp_path):
        process = started("train", "--json", *SMALL, "--steps", "3", "--grad-accumulation", "65536", "--out", "out")
        for line in process.stdout:
            if json.loads(line)["event"] == "loaded":
                break
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0 and "the step under way is dropped" in err and "nothing was saved" in err
        assert gone(workers) and not (tmp_path / "out").exists()

    def test_a_stop_in_a_later_step_keeps_the_one_before(self, make_job):
        """Bit for bit: the adapter is that of a run that was to have so many steps."""
        accumulated = {"grad_accumulation": 12, "seq_len": 16}
        session = Session(make_job(steps=ENDLESS, **accumulated))
        follow(session, 1, session.stop)
        assert session.outcome.kind == "stopped" and session.outcome.steps >= 1
        stopped = (session.outcome.adapter / "adapters.safetensors").read_bytes()
        shutil.rmtree(session.job.adapter_folder)
        whole = Session(make_job(steps=session.outcome.steps, **accumulated))
        follow(whole)
        assert whole.outcome.kind == "finished"
        assert (whole.outcome.adapter / "adapters.safetensors").read_bytes() == stopped


class TestFilesThatGo:
    def test_a_model_that_is_touched_while_the_run_goes(self, make_job, tiny_copy):
        """Who reads it block by block notices, and keeps what was learnt before."""
        session = Session(make_job(model=str(tiny_copy), steps=ENDLESS, method="mesp:weights=streamed"))
        file = tiny_copy / "model.safetensors"
        heard = follow(session, 3, lambda: os.utime(file, ns=(1, 1)))
        outcome = session.outcome
        assert (outcome.kind, outcome.exit_code) == ("checkpoint", 1), outcome.message
        assert str(file) in outcome.message and str(outcome.adapter) in outcome.message
        assert step_of(outcome.adapter) == outcome.steps == len(steps_of(heard)) >= 3

    def test_the_cache_is_emptied_between_two_methods(self, started, tmp_path):
        cache = tmp_path / "cache"
        process = started(
            "compare", "--json", *SMALL, "--steps", "6", "--methods", "mesp,mebp", "--out", "out",
            env={"MESP_CACHE_DIR": str(cache)},
        )  # fmt: skip
        read_to_step(process, 2)
        shutil.rmtree(cache)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        for method in ("mesp", "mebp"):
            assert stored(tmp_path / "out", method)["outcome"]["kind"] == "finished"
            assert saved_step(tmp_path / "out", method) == 6

    def test_a_scratch_folder_that_cannot_be_had(self, make_job, tmp_path):
        """It is told, and the run goes on: it is only wanted for a step that breaks off."""
        (tmp_path / "file").write_text("")
        session = Session(make_job(steps=2, scratch_dir=str(tmp_path / "file" / "scratch")))
        heard = follow(session)
        assert session.outcome.kind == "finished" and step_of(session.outcome.adapter) == 2
        assert any("cannot be taken back" in message for message in logged(heard))

    def test_then_a_step_that_breaks_off_is_not_saved(self, make_job, tiny_copy, tmp_path):
        (tmp_path / "file").write_text("")
        changes = {"scratch_dir": str(tmp_path / "file" / "scratch"), "model": str(tiny_copy), "save_every": 2}
        session = Session(make_job(steps=ENDLESS, method="mesp:weights=streamed", **changes))
        follow(session, 3, lambda: os.utime(tiny_copy / "model.safetensors", ns=(1, 1)))
        assert session.outcome.kind == "checkpoint"
        adapter = session.outcome.adapter
        # Which read was the first to notice is chance: if no block had been changed, the step before is whole.
        assert step_of(adapter) in (session.outcome.steps, session.outcome.steps // 2 * 2)


def test_a_worker_whose_listener_is_gone_saves_and_ends(make_job):
    """Without a parent there is neither an event to be read nor a command to be heard."""
    job = make_job(steps=ENDLESS)
    worker = start_module("mesp_core.training.worker")
    worker.stdin.write(job.to_json() + '\n{"command": "step", "steps": 100000}\n')
    worker.stdin.flush()
    for line in worker.stdout:
        if '"step"' in line and events.parse_event(line).event == "step":
            break
    worker.stdout.close()
    with contextlib.suppress(OSError):
        worker.stdin.close()
    worker.wait(PATIENCE_S)
    worker.stderr.close()
    assert step_of(job.adapter_folder) >= 1
