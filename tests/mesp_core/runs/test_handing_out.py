"""A worker does the steps that it is handed out, waits for more, and saves when it has a turn."""

import time
from itertools import pairwise

import psutil
import pytest
from session_driver import ENDLESS, assert_gone, assert_usable, follow, steps_of

from mesp_core.processes.start import start_module
from mesp_core.runs import events
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.out_folder import claim_out
from mesp_core.runs.prepare import prepare
from mesp_core.runs.session import Session


def told_of_time(heard):
    return any(isinstance(event, events.Log) and "time limit" in event.message for event in heard)


def steps_and_saves(heard):
    """(method, "step" or "saved", step) in the order in which they were said."""
    return [(event.method, event.event, event.step) for event in heard if isinstance(event, events.Step | events.Saved)]


class TestOneAtATime:
    def test_one_step_each_time_and_what_is_waited_counts_nowhere(self, make_job):
        session = Session(make_job(steps=ENDLESS, time_limit_s=1.5))
        heard, busy = [], []

        def wait_a_while():
            worker = psutil.Process(session.pid)
            before = sum(worker.cpu_times()[:2])
            time.sleep(1.0)
            busy.append(sum(worker.cpu_times()[:2]) - before)

        for event in session.run():
            heard.append(event)
            if isinstance(event, events.Loaded):
                wait_a_while()
                session.hand_out(1)
            if isinstance(event, events.Step) and event.step == 1:
                wait_a_while()
                session.hand_out(1)
            if isinstance(event, events.Step) and event.step == 2:
                wait_a_while()
                session.stop()
        steps = steps_of(heard)
        assert [step.step for step in steps] == [1, 2] and session.outcome.steps == 2
        # on a busy machine a step may take a second itself
        assert steps[1].step_time_s <= steps[1].t_s - steps[0].t_s - 0.95
        assert max(busy[0], busy[2]) < 0.5  # what is left of the step before may fall into the one between
        assert not told_of_time(heard)
        assert session.outcome.kind == "stopped" and assert_usable(session.outcome.adapter) == 2
        assert_gone(session)

    def test_its_own_time_is_limited(self, make_job):
        session = Session(make_job(steps=ENDLESS, time_limit_s=0.4))
        heard = []
        for event in session.run():
            heard.append(event)
            if isinstance(event, events.Loaded | events.Step):
                session.hand_out(1)
        assert session.outcome.kind == "stopped"
        assert any(isinstance(event, events.Log) and "time limit of 0.4 s" in event.message for event in heard)
        assert sum(step.step_time_s for step in steps_of(heard)[:-1]) < 0.4

    def test_stopped_before_its_first_step_it_has_learnt_nothing(self, make_job):
        session = Session(make_job())
        heard = []
        for event in session.run():
            heard.append(event)
            if isinstance(event, events.Loaded):
                session.stop()
        assert steps_of(heard) == [] and session.outcome.kind == "stopped" and session.outcome.adapter is None
        assert next(event for event in heard if isinstance(event, events.Done)).adapter is None
        assert not session.job.adapter_folder.exists()

    def test_a_parent_that_is_gone_ends_it_and_what_was_learnt_is_saved(self, make_job):
        job = make_job(steps=ENDLESS)
        with start_module("mesp_core.training.worker") as worker:
            said = map(events.parse_event, worker.stdout)
            worker.stdin.write(job.to_json() + '\n{"command": "step", "steps": 1}\n')
            worker.stdin.flush()
            assert next(event for event in said if isinstance(event, events.Step)).step == 1
            worker.stdin.close()
            done = next(event for event in said if isinstance(event, events.Done))
        assert (worker.returncode, done.outcome, done.steps) == (0, "stopped", 1)
        assert assert_usable(job.adapter_folder) == 1


class TestSeveralAtOnce:
    def test_it_does_so_many_and_then_waits(self, make_job):
        """The heart beats on while it waits, so that it is not taken for a silent one."""
        session = Session(make_job(steps=ENDLESS))
        heard, beats = [], 0
        for event in session.run():
            heard.append(event)
            if isinstance(event, events.Loaded):
                session.hand_out(3)
            beats += isinstance(event, events.Heartbeat) and len(steps_of(heard)) == 3
            if beats == 3:
                session.stop()
        assert [step.step for step in steps_of(heard)] == [1, 2, 3]
        assert session.outcome.kind == "stopped" and assert_usable(session.outcome.adapter) == 3

    def test_what_is_no_command_is_passed_over(self, make_job):
        job = make_job(steps=2)
        with start_module("mesp_core.training.worker") as worker:
            lines = ["[]", '{"command": "st', '{"command": "step"}', '{"command": "step", "steps": -1}', "2"]
            worker.stdin.write("\n".join([job.to_json(), *lines, '{"command": "step", "steps": 2}\n']))
            worker.stdin.flush()
            [done] = [event for event in map(events.parse_event, worker.stdout) if isinstance(event, events.Done)]
        assert (done.outcome, done.steps) == ("finished", 2)

    def test_a_stop_that_a_signals_handler_sends_in_the_middle_of_the_line_is_sent_again(self, make_job):
        """Written into another line it would be lost, and all steps are handed out at once."""
        session = Session(make_job(steps=ENDLESS))
        heard = []

        def interrupted(line):
            if '"step"' in line:
                session._child.send = lambda line: None  # what the handler sends meanwhile is lost
                session.stop()
                session._child.send = send
            send(line)

        for event in session.run():
            heard.append(event)
            if isinstance(event, events.Loaded):
                send, session._child.send = session._child.send, interrupted
                session.hand_out(ENDLESS)
        assert session.outcome.kind == "stopped" and len(steps_of(heard)) < 30


class TestSaving:
    @pytest.fixture
    def heard_of(self, small_config, tmp_path):
        """heard_of(methods, interleave, **changes) -> all that a comparison said."""

        def run(methods, interleave, **changes):
            config = small_config(**changes)
            comparison = Comparison(config, methods, prepare(config), claim_out(tmp_path / "out"), interleave)
            heard = list(comparison.run())
            assert {result.outcome.ok for result in comparison.results.methods.values()} == {True}
            return heard

        return run

    def test_it_saves_when_its_next_turn_comes(self, make_job):
        session = Session(make_job(steps=ENDLESS, save_every=2))
        for event in session.run():
            if isinstance(event, events.Step) and event.step == 4:
                session.kill()
            elif isinstance(event, events.Loaded | events.Step):
                session.hand_out(1)
        assert assert_usable(session.outcome.adapter) == 2  # what is due after a step is saved in the next turn

    def test_alone_it_saves_after_the_steps_that_were_asked_for_and_at_the_end(self, heard_of):
        heard = heard_of(["mesp"], False, steps=5, save_every=2)
        assert [said[1:] for said in steps_and_saves(heard)] == [
            ("step", 1), ("step", 2), ("saved", 2), ("step", 3), ("step", 4), ("saved", 4), ("step", 5), ("saved", 5),
        ]  # fmt: skip

    def test_interleaved_each_saves_in_its_own_turn(self, heard_of):
        heard = heard_of(["mebp", "mesp"], True, steps=3, save_every=1)
        expected = [("step", 1)], [("saved", 1), ("step", 2)], [("saved", 2), ("step", 3), ("saved", 3)]
        assert steps_and_saves(heard) == [
            (method, *said) for turn in expected for method in ("mebp", "mesp") for said in turn
        ]

    def test_interleaved_one_that_has_had_its_time_waits_for_its_turn_to_save(self, heard_of):
        heard = steps_and_saves(heard_of(["mebp", "mesp"], True, steps=ENDLESS, time_limit_s=0.5))
        saved = [at for at, (_, said, _) in enumerate(heard) if said == "saved"]
        assert len(saved) == 2
        first = saved[0]  # the other one is still there, and its step comes before
        assert heard[first - 1][:2] == (next(m for m in ("mebp", "mesp") if m != heard[first][0]), "step")

    def test_the_time_that_saving_takes_is_limited_too_but_is_no_steps(self, make_job, monkeypatch, tmp_path):
        plant = (
            "import sys, time\n"
            "if 'mesp_core.training.worker' in sys.orig_argv:\n"
            "    from mesp_core.adapters import adapter\n"
            "    right = adapter.save_adapter\n"
            "    adapter.save_adapter = lambda *given: (time.sleep(1.0), right(*given))\n"
        )
        (tmp_path / "sitecustomize.py").write_text(plant)
        job = make_job(steps=ENDLESS, save_every=1, time_limit_s=2.5)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        session = Session(job)
        heard = follow(session)
        steps = steps_of(heard)
        assert session.outcome.kind == "stopped" and told_of_time(heard) and 1 <= len(steps) <= 3
        for before, after in pairwise(steps):
            assert after.step_time_s <= after.t_s - before.t_s - 0.95
