"""The run controller with a played comparison: order of signals, stop, kill, failures."""

import threading

import pytest

from app.experiment.experiment import Experiment
from app.run.controller import IDLE, RUNNING, STOPPING, RunController
from mesp_core.errors import DataError
from mesp_core.runs.outcome import Outcome


@pytest.fixture
def experiment(small_config):
    return Experiment(small_config(steps=3), ("mebp", "mesp"), False)


@pytest.fixture
def controller(played, prepared_nothing, qtbot):
    controller = RunController(prepare=prepared_nothing, comparison=played)
    yield controller
    controller.kill()
    assert controller.wait(5)


def listen(controller):
    heard = []
    controller.begun.connect(lambda begun: heard.append("begun"))
    controller.loaded.connect(lambda loaded: heard.append(f"loaded {loaded.method}"))
    controller.stepped.connect(lambda step: heard.append(f"{step.method} {step.step}"))
    controller.method_ended.connect(lambda method, outcome: heard.append(f"{method} {outcome.kind}"))
    controller.state_changed.connect(heard.append)
    controller.ended.connect(lambda end: heard.append("ended"))
    return heard


def test_everything_comes_in_order_and_once(controller, experiment, tmp_path, qtbot):
    heard = listen(controller)
    rows = []
    controller.rows.connect(rows.append)
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
        assert controller.is_running
    assert not ended.args[0].problem
    assert heard == [
        *(RUNNING, "begun"),
        *("loaded mebp", "mebp 1", "mebp 2", "mebp 3", "mebp finished"),
        *("loaded mesp", "mesp 1", "mesp 2", "mesp 3", "mesp finished"),
        *(IDLE, "ended"),
    ]
    (end,) = ended.args
    assert [row["method"] for row in rows[-1]] == ["mebp", "mesp"]
    assert rows[-1][1]["final_loss"] == pytest.approx(4.7)
    assert not end.problem and not end.stopped and list(end.methods) == ["mebp", "mesp"]
    assert not controller.is_running
    assert list(tmp_path.iterdir()) == []  # nothing was written, so no empty folder stays


def test_signals_arrive_on_the_main_thread(controller, experiment, tmp_path, qtbot):
    threads = set()
    controller.stepped.connect(lambda step: threads.add(threading.current_thread()))
    with qtbot.waitSignal(controller.ended, timeout=5000):
        controller.start(experiment, tmp_path)
    assert threads == {threading.main_thread()}


def test_stop_ends_after_the_step_and_starts_no_further_method(controller, played, experiment, tmp_path, qtbot):
    played.gate = threading.Event()
    heard = listen(controller)
    with qtbot.waitSignal(controller.loaded, timeout=5000):
        controller.start(experiment, tmp_path)
    controller.stop()
    assert controller.state == STOPPING
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        played.gate.set()
    (end,) = ended.args
    assert "mebp stopped" in heard and "loaded mesp" not in heard
    assert end.stopped and not end.problem


def test_a_stop_that_comes_before_there_is_a_comparison_counts(played, experiment, tmp_path, qtbot):
    reached, go_on = threading.Event(), threading.Event()

    def slow_prepare(config, report):
        reached.set()
        go_on.wait(5)
        return None

    controller = RunController(prepare=slow_prepare, comparison=played)
    heard = listen(controller)
    controller.start(experiment, tmp_path)
    assert reached.wait(5)
    controller.stop()
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        go_on.set()
    assert ended.args[0].stopped and ended.args[0].results is None
    assert heard == [RUNNING, STOPPING, IDLE, "ended"]


def test_preparing_can_be_cancelled_while_it_reports(played, experiment, tmp_path, qtbot):
    def endless_prepare(config, report):
        while True:
            report("Downloading", 0.5)

    controller = RunController(prepare=endless_prepare, comparison=played)
    with qtbot.waitSignal(controller.preparing, timeout=5000) as preparing:
        controller.start(experiment, tmp_path)
    assert preparing.args == ["Downloading", 0.5]
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.stop()
    assert ended.args[0].stopped and not ended.args[0].problem


def test_what_prepare_refuses_is_the_problem(played, experiment, tmp_path, qtbot):
    def refuse(config, report):
        raise DataError("file.jsonl, line 7: broken JSON")

    controller = RunController(prepare=refuse, comparison=played)
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
    assert ended.args[0].problem == "file.jsonl, line 7: broken JSON"


def test_a_method_that_crashes_leaves_the_other_its_results(controller, played, experiment, tmp_path, qtbot):
    played.fails_with = Outcome("crashed", "mebp: the worker was killed by SIGKILL", steps=1, exit_code=1, details="words")
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
    (end,) = ended.args
    assert "SIGKILL" in end.problem and end.details == "words" and not end.stopped
    assert end.methods["mesp"].kind == "finished"
    assert len(end.results.methods["mesp"].steps) == 3


def test_results_that_could_not_be_written_are_the_problem(controller, played, experiment, tmp_path, qtbot):
    played.problem = "results.json cannot be written: No space left on device."
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
    assert "No space left" in ended.args[0].problem and list(ended.args[0].methods) == ["mebp", "mesp"]


def test_what_was_done_before_a_defect_is_kept(controller, played, experiment, tmp_path, qtbot):
    usual = played._method

    def second_breaks(self, method):
        if method == "mesp":
            raise ZeroDivisionError("nought")
        yield from usual(self, method)

    played._method = second_breaks
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
    (end,) = ended.args
    assert "ZeroDivisionError" in end.problem and end.methods["mebp"].kind == "finished"


def test_a_second_stop_does_not_kill(controller, played, experiment, tmp_path, qtbot):
    killed = []
    played.kill = lambda self: killed.append(1)
    played.gate = threading.Event()
    with qtbot.waitSignal(controller.loaded, timeout=5000):
        controller.start(experiment, tmp_path)
    controller.stop()
    controller.stop()
    with qtbot.waitSignal(controller.ended, timeout=5000):
        played.gate.set()
    assert not killed


def test_a_defect_in_the_comparison_ends_the_run_with_a_sentence(controller, played, experiment, tmp_path, qtbot):
    def broken(self, method):
        yield from ()
        raise ZeroDivisionError("nought")

    played._method = broken
    with qtbot.waitSignal(controller.ended, timeout=5000) as ended:
        controller.start(experiment, tmp_path)
    assert ended.args[0].problem == "Unexpected ZeroDivisionError: nought"
    assert not controller.is_running


def test_only_one_run_at_a_time(controller, played, experiment, tmp_path, qtbot):
    played.gate = threading.Event()
    controller.start(experiment, tmp_path)
    with pytest.raises(RuntimeError):
        controller.start(experiment, tmp_path)
    with qtbot.waitSignal(controller.ended, timeout=5000):
        controller.stop()
        played.gate.set()
    with qtbot.waitSignal(controller.ended, timeout=5000):
        controller.start(experiment, tmp_path)  # and again afterwards


def test_interleaving_is_passed_on(controller, played, experiment, tmp_path, qtbot):
    seen = []
    made = played.__init__

    def noting(self, *arguments, interleave=False):
        seen.append(interleave)
        made(self, *arguments, interleave=interleave)

    played.__init__ = noting
    with qtbot.waitSignal(controller.ended, timeout=5000):
        controller.start(Experiment(experiment.config, experiment.methods, True), tmp_path)
    assert seen == [True]


def test_stop_works_even_where_preparing_hangs_for_good(played, experiment, tmp_path, qtbot):
    never = threading.Event()
    controller = RunController(prepare=lambda config, report: never.wait(), comparison=played)
    controller.start(experiment, tmp_path)
    with qtbot.waitSignal(controller.preparing, timeout=2000):
        pass
    with qtbot.waitSignal(controller.ended, timeout=3000) as ended:
        controller.stop()
    never.set()
    assert ended.args[0].stopped and ended.args[0].results is None
