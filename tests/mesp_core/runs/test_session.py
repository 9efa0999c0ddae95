"""Real workers on the tiny model: what a session hears, and every way a run can end."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from session_driver import ENDLESS, assert_gone, assert_usable, follow, running, steps_of

from mesp_core.errors import UsageError
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.runs.session import Session


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_config):
    """A run of five steps: the session and all it said."""
    from mesp_core.runs.prepare import prepare

    config = small_config(steps=5)
    prepared = prepare(config)
    adapter = tmp_path_factory.mktemp("finished") / "mesp" / "adapter"
    session = Session(Job(config, prepared.source.path, prepared.tokens.path, adapter))
    start = time.monotonic()
    heard = follow(session)
    session.took_s = time.monotonic() - start
    return session, heard


class TestAFinishedRun:
    def test_events_come_typed_and_in_order(self, finished):
        _, heard = finished
        order = [
            (event.event, getattr(event, "step", None))
            for event in heard
            if not isinstance(event, events.Memory | events.Heartbeat | events.Log)
        ]
        assert order == [("loaded", None), *(("step", n) for n in range(1, 6)), ("saved", 5), ("done", None)]
        assert isinstance(heard[0], events.Log) and heard[0].message.startswith("BLAS: ")
        assert {event.method for event in heard} == {"mesp"}
        assert any(isinstance(event, events.Heartbeat) for event in heard)

    def test_every_event_survives_its_json(self, finished):
        for event in finished[1]:
            assert events.parse_event(event.to_json()) == event

    def test_loaded_describes_the_model(self, finished):
        loaded = next(event for event in finished[1] if isinstance(event, events.Loaded))
        assert (loaded.model_type, loaded.bits, loaded.adapter_dtype) == ("qwen2", 4, "float32")
        # Σ rank·(in + out) over the projections of four blocks
        widths = [256 + 256, 256 + 128, 256 + 128, 256 + 256, 256 + 768, 256 + 768, 768 + 256]
        assert loaded.trainable_parameters == 4 * 4 * sum(widths)
        assert loaded.parameters == 3_674_368
        assert 5 < loaded.baseline_mb < 60
        assert loaded.device_info["architecture"]

    def test_steps_are_filled_in(self, finished):
        for step in steps_of(finished[1]):
            assert step.perplexity == pytest.approx(math.exp(step.loss))
            assert step.tokens_per_s == pytest.approx(step.tokens / step.step_time_s)
            assert 0 < step.trained_tokens <= step.tokens <= 32
            assert set(step.allocator_peak_by_phase_mb) == {"forward", "loss", "backward"}
            assert step.allocator_peak_mb == max(step.allocator_peak_by_phase_mb.values())
            assert 0 < step.gradient_norm < 100
            assert abs(step.timestamp - time.time()) < 600
            assert step.thermal_state in ("unknown", "nominal", "fair", "serious", "critical")

    def test_footprints_are_filled_in_and_fit_together(self, finished):
        session, heard = finished
        steps = steps_of(heard)
        for step in steps:
            assert 0 < step.footprint_start_mb <= step.footprint_peak_mb
            assert 0 < step.footprint_end_mb <= step.footprint_peak_mb
            assert step.footprint_peak_exact is (sys.platform == "darwin")
        for before, after in pairwise(steps):
            assert after.footprint_start_mb == before.footprint_end_mb
        loaded = next(event for event in heard if isinstance(event, events.Loaded))
        peak = session.outcome.footprint_peak_mb
        assert peak >= max(step.footprint_peak_mb for step in steps)
        # What the allocator handed out must show up in what the system says the process holds.
        assert peak - loaded.baseline_mb >= 0.8 * max(step.allocator_peak_mb for step in steps)

    @pytest.mark.parametrize(("mode", "warnings"), [("on", 1), ("off", 0), ("unknown", 0)])
    def test_a_mac_that_saves_energy_is_told_of(self, make_job, monkeypatch, mode, warnings):
        monkeypatch.setattr("mesp_core.runs.session.low_power_mode", lambda: mode)
        session = Session(make_job())
        session.kill()  # what is told before the worker starts is told all the same
        heard = list(session.run())
        assert [event.level for event in heard if "Low power mode" in event.message] == ["warning"] * warnings

    def test_memory_is_reported_between(self, make_job):
        """For as long as it runs: how often in so many steps depends on the machine."""
        session, heard, memory = Session(make_job(steps=ENDLESS)), [], []
        for event in running(session):
            heard.append(event)
            if isinstance(event, events.Memory):
                memory.append(event)
                if steps_of(heard) and len(memory) == 5:
                    session.stop()
            elif isinstance(event, events.Step) and len(memory) >= 5:
                session.stop()
        assert session.outcome.kind == "stopped" and len(memory) >= 5
        assert all(a.t_s < b.t_s for a, b in pairwise(memory))
        assert 0 < max(event.footprint_mb for event in memory) <= session.outcome.footprint_peak_mb + 0.001

    def test_steps_and_memory_are_on_one_clock(self, finished):
        session, heard = finished
        times = [step.t_s for step in steps_of(heard)]
        assert all(before <= after for before, after in pairwise(times))  # two that were read at once have one time
        first, *_ = (event.t_s for event in heard if isinstance(event, events.Memory))
        assert 0 <= first < times[0] and times[-1] <= session.took_s

    def test_the_outcome_and_the_adapter(self, finished):
        session, heard = finished
        outcome = session.outcome
        assert (outcome.kind, outcome.ok, outcome.steps, outcome.exit_code) == ("finished", True, 5, 0)
        assert str(outcome) == outcome.message and "5 of 5 steps" in outcome.message
        assert heard[-1].event in ("done", "memory")
        assert outcome.adapter == session.job.adapter_folder
        assert assert_usable(outcome.adapter) == 5
        assert files_below(outcome.adapter.parent) == [
            "adapter",
            "adapter/adapter_config.json",
            "adapter/adapters.safetensors",
        ]
        assert_gone(session)

    def test_a_job_survives_its_line(self, finished):
        job = finished[0].job
        line = job.to_json()
        assert "\n" not in line and Job.from_json(line) == job


class TestStopping:
    def test_stop_finishes_the_step_and_saves(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        heard = follow(session, 3, session.stop)
        outcome = session.outcome
        assert outcome.kind == "stopped" and outcome.ok and outcome.exit_code == 0
        assert 3 <= outcome.steps == len(steps_of(heard)) < 30
        assert assert_usable(outcome.adapter) == outcome.steps
        assert any(isinstance(event, events.Done) and event.outcome == "stopped" for event in heard)
        assert_gone(session)

    def test_stop_before_the_start(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        session.stop()
        heard = follow(session)
        assert session.outcome.kind == "stopped"
        assert session.outcome.steps == len(steps_of(heard)) <= 1
        assert_gone(session)

    def test_the_time_limit_stops_after_the_step(self, make_job):
        session = Session(make_job(steps=ENDLESS, time_limit_s=0.4))
        heard = follow(session)
        assert session.outcome.kind == "stopped" and session.outcome.ok
        assert session.outcome.steps == len(steps_of(heard)) >= 1
        assert sum(step.step_time_s for step in steps_of(heard)[:-1]) < 0.4
        assert any(isinstance(event, events.Log) and "time limit of 0.4 s" in event.message for event in heard)
        assert assert_usable(session.outcome.adapter) == session.outcome.steps


class TestEndingAtOnce:
    def test_kill(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        follow(session, 3, session.kill)
        outcome = session.outcome
        assert (outcome.kind, outcome.ok, outcome.exit_code) == ("killed", False, 1)
        assert "as asked" in outcome.message and outcome.steps >= 3
        assert outcome.adapter is None and not session.job.adapter_folder.exists()
        assert_gone(session)

    def test_kill_before_the_start_starts_nothing(self, make_job):
        session = Session(make_job(steps=3))
        session.kill()
        heard = follow(session)
        assert session.outcome.kind == "killed"
        assert steps_of(heard) == [] and not session.job.adapter_folder.exists()

    def test_leaving_the_iterator_early_ends_the_worker(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        for event in running(session):
            if isinstance(event, events.Loaded):
                break
        assert_gone(session)
        assert session.outcome is not None and not session.outcome.ok

    def test_the_memory_limit(self, make_job):
        session = Session(make_job(steps=ENDLESS, memory_limit_mb=8))
        follow(session)
        outcome = session.outcome
        assert (outcome.kind, outcome.exit_code) == ("memory-limit", 1)
        assert "limit of 8 MB" in outcome.message and "lower seq_len or batch_size" in outcome.message
        assert outcome.footprint_peak_mb > 8
        assert_gone(session)

    def test_a_limit_that_is_not_reached_changes_nothing(self, make_job):
        session = Session(make_job(steps=2, memory_limit_mb=4000, time_limit_s=1000.0))
        follow(session)
        assert session.outcome.kind == "finished"


class TestDyingWorkers:
    def test_a_crash_is_told_in_words_and_the_last_saved_adapter_stays(self, make_job):
        session = Session(make_job(steps=ENDLESS, save_every=2))
        parent = session.job.adapter_folder.parent

        def die_while_saving():
            half = parent / ".adapter-new-half"
            half.mkdir(parents=True)
            (half / "adapters.safetensors").write_bytes(b"the first few by")
            os.kill(session.pid, signal.SIGKILL)

        heard = follow(session, 5, die_while_saving)
        outcome = session.outcome
        assert (outcome.kind, outcome.ok, outcome.exit_code) == ("crashed", False, 1)
        assert "SIGKILL" in outcome.message and "memory runs out" in outcome.message
        assert outcome.steps == steps_of(heard)[-1].step >= 5
        assert f"step {outcome.steps}" in outcome.message and str(outcome.adapter) in outcome.message
        step = assert_usable(outcome.adapter)
        assert step % 2 == 0 and step >= 4
        assert [path.name for path in parent.iterdir()] == ["adapter"]
        assert isinstance(heard[-1], events.Error) and heard[-1].message == outcome.message
        assert_gone(session)

    def test_a_crash_before_the_first_step_leaves_nothing(self, make_job):
        session = Session(make_job(steps=ENDLESS))
        for event in running(session):
            if isinstance(event, events.Loaded):
                os.kill(session.pid, signal.SIGABRT)
        assert session.outcome.kind == "crashed" and "SIGABRT" in session.outcome.message
        assert session.outcome.adapter is None

    def test_what_the_worker_said_last_is_told(self, make_job, monkeypatch, tmp_path):
        """Whatever a library prints, on either stream, before it takes the process down."""
        job = make_job(steps=ENDLESS)
        chatter = "import sys\nprint('chatter on stdout', flush=True)\nprint('chatter on stderr', file=sys.stderr)\n"
        (tmp_path / "sitecustomize.py").write_text(chatter)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        session = Session(job)
        heard = follow(session, 2, lambda: os.kill(session.pid, signal.SIGSEGV))
        assert len(steps_of(heard)) >= 2
        assert session.outcome.kind == "crashed" and "SIGSEGV" in session.outcome.message
        for words in ("chatter on stdout", "chatter on stderr"):
            assert words in session.outcome.message and words in session.outcome.details

    def test_a_silent_worker_is_ended(self, make_job):
        session = Session(make_job(steps=ENDLESS))

        def hang():
            session.silence_s = 1.5
            os.kill(session.pid, signal.SIGSTOP)

        start = time.monotonic()
        follow(session, 3, hang)
        assert session.outcome.kind == "silent" and session.outcome.exit_code == 1
        assert "said nothing for 1.5 s" in session.outcome.message
        assert time.monotonic() - start < 60
        assert_gone(session)

    def test_a_slow_reader_is_not_a_silent_worker(self, make_job):
        """A suspended command line, a busy window: the worker spoke all the time, only nobody listened."""
        session = Session(make_job(steps=ENDLESS))

        def be_slow():
            session.silence_s = 2.5
            time.sleep(4.0)
            session.stop()

        follow(session, 2, be_slow)
        assert session.outcome.kind == "stopped", session.outcome.message


class TestWorkersThatFail:
    def test_a_diverged_run_names_the_rate_and_leaves_no_broken_adapter(self, make_job):
        # float16, whose infinity is near: in float32 so large an adapter stays a number for long
        settings = {"optimizer": "sgd", "learning_rate": 9.0, "alpha": 1000.0, "dtype": "float16"}
        session = Session(make_job(steps=100, save_every=1, **settings))
        heard = follow(session)
        outcome = session.outcome
        assert outcome.exit_code == 1 and outcome.kind == "failure", outcome.message
        assert "learning_rate (now 9)" in outcome.message and "diverged" in outcome.message
        error = next(event for event in heard if isinstance(event, events.Error))
        assert "Traceback" in outcome.details and error.details == outcome.details
        assert "Traceback" not in outcome.message
        assert assert_usable(outcome.adapter) == outcome.steps == len(steps_of(heard))

    def test_a_model_that_was_cut_short_meanwhile(self, make_job, tiny_copy):
        job = make_job(model=str(tiny_copy))
        file = tiny_copy / "model.safetensors"
        os.truncate(file, file.stat().st_size - 1000)
        session = Session(job)
        heard = follow(session)
        assert (session.outcome.kind, session.outcome.exit_code) == ("checkpoint", 1)
        assert str(file) in session.outcome.message
        assert not any(isinstance(event, events.Loaded) for event in heard)

    def test_an_adapter_folder_that_cannot_be_made(self, make_job, tmp_path):
        (tmp_path / "out").write_text("a file where the folder should go")
        session = Session(make_job(steps=2))
        follow(session)
        assert (session.outcome.kind, session.outcome.exit_code) == ("failure", 1)
        assert "adapter cannot be written" in session.outcome.message
        assert "Traceback" not in session.outcome.message

    def test_a_blas_that_is_not_there_is_refused(self, make_job, monkeypatch, tmp_path):
        if sys.platform != "linux":
            pytest.skip("a BLAS is preloaded on Linux only")
        monkeypatch.setenv("MESP_BLAS", str(tmp_path / "no.so"))
        with pytest.raises(UsageError, match="MESP_BLAS"):
            follow(Session(make_job()))

    def test_the_worker_computes_with_the_blas_that_is_named(self, make_job):
        from mesp_core.machine.device import find_openblas

        blas = find_openblas()
        if blas is None:
            pytest.skip("no OpenBLAS on this machine")
        session, mapped = Session(make_job(steps=1)), ""
        for event in running(session):
            if isinstance(event, events.Loaded):
                with open(f"/proc/{session.pid}/maps") as file:
                    mapped = file.read()
        assert str(blas.resolve()) in mapped or str(blas) in mapped


RUN_IN_PROCESS = """
import json, sys, threading
from mesp_core.runs.job import Job
from mesp_core.training.worker import run

class Channel:
    stop_asked = threading.Event()
    steps = 0
    def say(self, event):
        self.steps += event.event == "step"
    def log(self, level, message):
        pass
    def wait_for_turn(self):
        return True

channel = Channel()
run(Job.from_json(sys.stdin.readline()), channel)
print(json.dumps({"steps": channel.steps, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""
HEAVY = {"PySide6", "transformers", "mlx_lm", "tokenizers", "huggingface_hub", "jinja2", "rich", "psutil", "torch", "app"}


def imported_by_worker(job):
    child = subprocess.run(
        [sys.executable, "-c", RUN_IN_PROCESS], input=job.to_json() + "\n", capture_output=True, text=True, check=True
    )
    said = json.loads(child.stdout)
    assert said["steps"] == job.config.steps
    return set(said["modules"])


class TestWhatIsImported:
    def test_the_worker_of_mesp_imports_mlx_and_little_else(self, make_job):
        imported = imported_by_worker(make_job(steps=1))
        assert "mlx" in imported and not imported & HEAVY

    def test_only_autodiff_brings_mlx_lm(self, make_job):
        imported = imported_by_worker(make_job(steps=1, method="autodiff", seq_len=8))
        assert "mlx_lm" in imported and not imported & {"PySide6", "app"}

    def test_the_parent_never_imports_mlx(self, tmp_path):
        """Neither by import nor by a whole comparison and check through the command line."""
        code = """
import sys
import mesp_core.runs.session, mesp_core.runs.comparison, mesp_core.runs.results, mesp_core.runs.prepare
import mesp_core.bench.gradient_check, mesp_core.bench.doctor
from mesp_core.commands.cli import main

def heavy():
    names = {"mlx", "PySide6", "mlx_lm", "transformers", "tokenizers", "torch"}
    return sorted({module.split(".")[0] for module in sys.modules} & names)

assert not heavy(), heavy()
small = ["--seq-len", "32", "--rank", "4"]
assert main(["compare", *small, "--steps", "1", "--methods", "mesp,mebp", "--out", sys.argv[1]]) == 0
assert not heavy(), heavy()
assert main(["check", *small, "--methods", "mesp"]) == 0
assert not heavy(), heavy()
"""
        child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr
