"""`mesp plan` and `mesp train --budget` as a person or a program meets them."""

import dataclasses

import pytest

from mesp_core.commands import cli, train
from mesp_core.machine.figures import Shapes
from mesp_core.machine.recorded import recorded
from mesp_core.methods.names import parse_method

ALL = ("mebp", "mesp", "mesp-store-h", "lean", "lean:inputs=disk", "autodiff", "autodiff:grad-checkpoint")


@pytest.fixture
def run(capsys):
    """run(*arguments) -> (exit code, stdout, stderr), in this process."""

    def start(*arguments):
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return start


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """This machine's figures without measuring them; a list of what was asked for."""
    asked = []
    figures = dataclasses.replace(recorded("cpu2", "float32"), name="a known machine", source="measured", measured=True)
    monkeypatch.setattr("mesp_core.commands.plan_report.ensure", lambda shapes, say: asked.append(shapes) or figures)
    return asked


class TestPlan:
    def test_a_table_of_every_method(self, run):
        code, out, err = run("plan", "--seq-len", "64", "--data", "nowhere.jsonl")
        assert (code, err) == (0, "")
        for words in (*ALL, "backward", "training memory", "MB free", "fits"):
            assert words in out

    def test_as_json_one_object_a_method(self, run, strict_json):
        code, out, _ = run("plan", "--seq-len", "64", "--json")
        found = [strict_json(line) for line in out.splitlines()]
        assert code == 0 and [plan["method"] for plan in found] == list(ALL)
        for plan in found:
            phases = plan["allocator_peak_by_phase_mb"]
            assert plan["event"] == "plan" and plan["allocator_peak_mb"] == max(phases.values())
            for name, parts in plan["parts_by_phase_mb"].items():
                assert sum(parts.values()) == pytest.approx(phases[name], abs=0.02)
            assert plan["training_memory_mb"] > plan["allocator_peak_mb"]
            assert plan["fits"] == (plan["training_memory_mb"] <= plan["machine_free_mb"])
            assert plan["step_time_s"] > 0
            assert plan["machine"] == {"name": "a known machine", "source": "measured", "measured": True}

    def test_this_machines_figures_are_those_of_the_models_shapes(self, run, known_machine):
        code, out, err = run("plan", "--methods", "lean", "--seq-len", "60")
        assert (code, err) == (0, "") and "time on a known machine, measured" in out
        assert known_machine == [Shapes(hidden=256, intermediate=768, bits=4, group_size=64, dtype="float32", tokens=64)]

    def test_another_machine_is_planned_for_as_it_computes_and_named(self, run, known_machine, strict_json):
        code, out, _ = run("plan", "--methods", "lean", "--machine", "m4max")
        assert code == 0 and "time on Apple M4 Max (40 GPU cores), recorded: published figures and estimates" in out
        found = {}
        for name in ("m1", "m4max", "cpu2"):
            found[name] = strict_json(run("plan", "--methods", "mebp", "--machine", name, "--json")[1])
        assert known_machine == []
        assert not any(plan["machine"]["measured"] for plan in found.values())
        assert found["m4max"]["step_time_s"] < found["m1"]["step_time_s"] < found["cpu2"]["step_time_s"]
        # On a GPU activations are the checkpoint's bfloat16.
        assert found["m1"]["allocator_peak_mb"] < found["cpu2"]["allocator_peak_mb"]

    def test_an_unknown_machine_is_refused_with_those_there_are(self, run):
        code, out, err = run("plan", "--machine", "m9000")
        assert (code, out) == (2, "") and "m9000" in err and "m1, m1max" in err

    def test_a_budget_is_put_in_words(self, run):
        code, out, _ = run("plan", "--seq-len", "64", "--budget", "1 GB")
        assert code == 0
        assert "lean:budget=1GB: kept: attention, gate, up, σ(gate) of all" in out and "block inputs in memory" in out

    def test_a_budget_is_merged_with_other_options(self, run, strict_json):
        code, out, _ = run("plan", "--methods", "mesp,lean:inputs=disk", "--budget", "900MB", "--json")
        found = [strict_json(line) for line in out.splitlines()]
        assert code == 0 and [plan["method"] for plan in found] == ["mesp", "lean:inputs=disk:budget=900MB"]
        assert found[1]["inputs"] == "disk" and found[1]["keep"]["attention"] > 0

    @pytest.mark.parametrize("what", ["does not fit", "more than is free"])
    def test_a_machine_that_is_too_small(self, what, run, monkeypatch):
        total = 2**20 if what == "does not fit" else 2**40
        monkeypatch.setattr("mesp_core.commands.plan_report.machine_memory", lambda: (total, 2**19))
        code, out, _ = run("plan", "--methods", "mesp")
        assert code == 0 and what in out

    def test_a_budget_too_small(self, run):
        code, out, err = run("plan", "--budget", "1MB")
        assert (code, out) == (2, "")
        assert "1.0 MB is too small" in err and "on disk, takes" in err

    def test_longer_than_the_model(self, run):
        code, _, err = run("plan", "--seq-len", "1025")
        assert code == 2 and "1025" in err


REFUSED = {
    "another method": (["--method", "mesp", "--budget", "200MB"], ["only lean", "'mesp'"]),
    "no size": (["--budget", "200"], ["--budget", "'200' is not a size"]),
    "twice": (["--method", "lean:budget=1GB", "--budget", "200MB"], ["a budget of its own"]),
}


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize("arguments, words", REFUSED.values(), ids=REFUSED)
def test_a_budget_that_cannot_be(command, arguments, words, run):
    if command == "plan":
        arguments = ["--methods" if argument == "--method" else argument for argument in arguments]
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err


@pytest.mark.parametrize("method", [None, "lean", "lean:inputs=disk:tmpfs"])
def test_training_within_a_budget_is_leans_option(method, run, monkeypatch):
    asked = []
    monkeypatch.setattr(train, "run_methods", lambda options, config, methods: asked.append((config.method, methods)) or 0)
    code, _, err = run("train", "--budget", "1.5 GB", *(["--method", method] if method else []))
    assert code == 0, err
    [(key, methods)] = asked
    assert methods == [key] and key == f"{method or 'lean'}:budget=1.5GB"
    assert parse_method(key).option("budget") == 1.5 * 2**30
