"""Methods side by side, a step of each in turn: nothing but the order differs from one after the other."""

import os
import signal
from itertools import pairwise

import psutil
import pytest
from session_driver import ENDLESS, steps_of

from mesp_core.errors import UsageError
from mesp_core.runs import events
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.out_folder import RESULTS_FILE, claim_out
from mesp_core.runs.prepare import prepare
from mesp_core.runs.results import Results

PAIR = ["mebp", "mesp"]


@pytest.fixture(scope="module")
def make(small_config, tmp_path_factory):
    """make(methods=PAIR, interleave=True, **changes) -> a comparison."""

    def comparison(methods=PAIR, interleave=True, **changes):
        config = small_config(**changes)
        out = tmp_path_factory.mktemp("interleaved") / "out"
        return Comparison(config, methods, prepare(config), claim_out(out), interleave)

    return comparison


@pytest.fixture(scope="module")
def both(make):
    """Three steps of two methods in turn, and all that was heard; the same one after the other."""
    in_turn, one_by_one = make(steps=3), make(steps=3, interleave=False)
    heard = list(in_turn.run())
    list(one_by_one.run())
    return in_turn, heard, one_by_one


def follow(comparison, act):
    """Run a comparison, calling `act(event)` at each; the pids of all its workers, and what was heard."""
    pids, heard = {}, []
    for event in comparison.run():
        heard.append(event)
        pids |= {session.method: session.pid for session in comparison.sessions if session.pid is not None}
        act(event)
    return pids, heard


def kinds(comparison):
    return {method: result.outcome.kind for method, result in comparison.results.methods.items()}


def assert_gone(comparison, pids):
    assert pids and not any(map(psutil.pid_exists, pids.values())) and comparison.sessions == ()


class TestInTurn:
    def test_steps_alternate(self, both):
        assert [(step.method, step.step) for step in steps_of(both[1])] == [(m, n) for n in (1, 2, 3) for m in PAIR]

    def test_losses_are_those_of_one_after_the_other(self, both):
        in_turn, _, one_by_one = both
        for method in PAIR:
            losses = [[step.loss for step in run.results.methods[method].steps] for run in (in_turn, one_by_one)]
            assert len(losses[0]) == 3 and losses[0] == losses[1]

    def test_no_step_overlaps_another_and_no_waiting_is_counted(self, both):
        for before, after in pairwise(steps_of(both[1])):
            assert after.timestamp - after.step_time_s >= before.timestamp - 0.002

    def test_loading_does_not_overlap(self, both):
        """The second worker is started when the first has loaded, and nobody steps before both have."""
        heard = [event for event in both[1] if not isinstance(event, events.Memory | events.Heartbeat)]
        loaded = [at for at, event in enumerate(heard) if isinstance(event, events.Loaded)]
        assert [heard[at].method for at in loaded] == PAIR
        assert {event.method for event in heard[: loaded[0]]} == {"mebp"}
        assert steps_of(heard[: loaded[1]]) == [] and len(steps_of(heard[loaded[1] :])) == 6

    def test_both_are_alive_at_once(self, make):
        alive = []
        comparison = make(steps=2)
        pids, _ = follow(comparison, lambda event: alive.append([session.method for session in comparison.sessions]))
        assert alive[0] == ["mebp"] and PAIR in alive and len(set(pids.values())) == 2
        assert_gone(comparison, pids)

    def test_the_results(self, both):
        comparison, heard, _ = both
        assert comparison.outcome.kind == "finished" and kinds(comparison) == dict.fromkeys(PAIR, "finished")
        assert {event.method for event in heard if isinstance(event, events.Done)} == set(PAIR)
        stored = Results.load(comparison.out / RESULTS_FILE)
        assert stored.config["interleave"] is True and list(stored.methods) == PAIR
        assert "".join(stored.to_json()) == "".join(comparison.results.to_json())
        for method in PAIR:
            assert (comparison.adapter_folder(method) / "adapters.safetensors").is_file()


class TestOneThatDropsOut:
    @pytest.mark.parametrize("number, kind", [(signal.SIGKILL, "crashed"), (signal.SIGSTOP, "silent")])
    @pytest.mark.parametrize("at", [("mebp", 2), ("mesp", 2)], ids=["waiting", "at work"])
    def test_the_others_go_on(self, make, number, kind, at):
        """Whether the turn is just its own or another's."""
        comparison = make(["mesp", "mebp", "mesp-store-h"], steps=5)

        def act(event):
            if isinstance(event, events.Step) and (event.method, event.step) == at:
                [victim] = [session for session in comparison.sessions if session.method == "mebp"]
                victim.silence_s = 1.5
                os.kill(victim.pid, number)

        pids, heard = follow(comparison, act)
        assert kinds(comparison) == {"mesp": "finished", "mebp": kind, "mesp-store-h": "finished"}
        assert comparison.outcome.kind == kind
        steps = [event.method for event in steps_of(heard)]
        assert steps.count("mesp") == steps.count("mesp-store-h") == 5 and 1 <= steps.count("mebp") <= 3
        assert_gone(comparison, pids)

    def test_while_it_loads(self, make):
        comparison = make(["mesp", "mebp", "mesp-store-h"], steps=2)
        killed = []

        def act(event):
            for session in comparison.sessions:
                if session.method == "mebp" and session.pid is not None and not killed:
                    killed.append(session.pid)
                    os.kill(session.pid, signal.SIGKILL)

        follow(comparison, act)
        assert kinds(comparison) == {"mesp": "finished", "mebp": "crashed", "mesp-store-h": "finished"}

    def test_one_that_has_had_its_time(self, make):
        """Each has the limit for itself: with the others' steps counted, none would get through."""
        pids, heard = follow(make(["mebp", "mesp", "mesp-store-h"], steps=ENDLESS, time_limit_s=0.5), lambda event: None)
        for method in pids:
            times = [step.step_time_s for step in steps_of(heard) if step.method == method]
            assert sum(times[:-1]) < 0.5 and sum(times) > 0.2

    def test_one_that_takes_too_much_memory(self, make):
        comparison = make(["mesp", "autodiff"], steps=2, seq_len=128, batch_size=4, memory_limit_mb=90)
        pids, _ = follow(comparison, lambda event: None)
        assert kinds(comparison) == {"mesp": "finished", "autodiff": "memory-limit"}
        assert_gone(comparison, pids)


class TestEnding:
    @pytest.mark.parametrize("how, kind", [("stop", "stopped"), ("kill", "killed")])
    def test_all_end(self, make, how, kind):
        comparison = make(steps=ENDLESS)

        def act(event):
            if isinstance(event, events.Step) and (event.method, event.step) == ("mebp", 3):
                getattr(comparison, how)()

        pids, heard = follow(comparison, act)
        assert kinds(comparison) == dict.fromkeys(PAIR, kind)
        assert [(step.method, step.step) for step in steps_of(heard)][-1] == ("mebp", 3)
        for method, steps in (("mebp", 3), ("mesp", 2)):
            result = comparison.results.methods[method]
            assert result.outcome.steps == len(result.steps) == steps
            assert comparison.adapter_folder(method).exists() == (how == "stop")
        assert_gone(comparison, pids)

    @pytest.mark.parametrize("how, kind", [("stop", "stopped"), ("kill", "killed")])
    def test_while_they_load(self, make, how, kind):
        comparison = make(steps=ENDLESS)

        def act(event):
            if isinstance(event, events.Loaded):
                getattr(comparison, how)()

        pids, heard = follow(comparison, act)
        assert steps_of(heard) == [] and set(pids) == {"mebp"}  # no other is begun
        assert kinds(comparison) == {"mebp": kind} and not comparison.out.exists()
        assert_gone(comparison, pids)

    def test_before_it_began(self, make):
        comparison = make()
        comparison.stop()
        assert list(comparison.run()) == [] and comparison.outcome is None and not comparison.out.exists()

    @pytest.mark.parametrize("kind", [events.Log, events.Loaded, events.Step])
    def test_leaving_early_ends_all_workers(self, make, kind):
        comparison = make(steps=ENDLESS)
        for event in comparison.run():
            sessions = comparison.sessions
            if isinstance(event, kind):
                break
        pids = {session.method: session.pid for session in sessions}
        assert len(pids) == (2 if kind is events.Step else 1)
        assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids.values()) and comparison.sessions == ()

    def test_an_error_in_what_all_are_given_ends_all(self, make, tiny_copy):
        comparison = make(["mebp", "mesp", "autodiff"], model=str(tiny_copy), steps=ENDLESS)
        file = tiny_copy / "model.safetensors"

        def act(event):
            if isinstance(event, events.Loaded):
                os.truncate(file, file.stat().st_size - 1000)

        pids, heard = follow(comparison, act)
        assert kinds(comparison) == {"mebp": "stopped", "mesp": "checkpoint"} and comparison.outcome.kind == "checkpoint"
        assert steps_of(heard) == []
        assert_gone(comparison, pids)

    def test_what_keeps_a_worker_from_starting_comes_out(self, make, monkeypatch, tmp_path):
        monkeypatch.setenv("MESP_BLAS", str(tmp_path / "no.so"))
        monkeypatch.setattr("sys.platform", "linux")
        comparison = make()
        with pytest.raises(UsageError, match="MESP_BLAS"):
            list(comparison.run())
        assert comparison.sessions == () and not comparison.out.exists()
