"""`mesp bench plan`: the comparison itself, with steps and figures that are made up."""

import dataclasses
from types import SimpleNamespace

import pytest

from mesp_core.bench import step_times
from mesp_core.bench.step_times import ALONE, BY_TURNS, CASES, compare
from mesp_core.commands import cli
from mesp_core.machine.recorded import recorded

SMALL = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "head_dim": 32, "vocab_size": 300}


@pytest.fixture
def steps_take(monkeypatch):
    """steps_take(seconds): what each measured step takes; the machine gets twice as slow from one time to the next."""
    figures = iter(range(1, 1000))

    def measured_now(shapes):
        return dataclasses.replace(recorded("cpu2", shapes.dtype), wait_s=1e-6 * next(figures))

    def run_trial(trial, folder, say, seconds):
        first = [SimpleNamespace(method=method, seconds=1e9) for method in trial.methods]
        return first + [SimpleNamespace(method=method, seconds=seconds) for method in trial.methods]

    def take(seconds):
        monkeypatch.setattr(step_times, "run_trial", lambda trial, folder, say: run_trial(trial, folder, say, seconds))

    monkeypatch.setattr(step_times, "measured_now", measured_now)
    monkeypatch.setattr(step_times, "GEOMETRIES", {name: g | SMALL for name, g in step_times.GEOMETRIES.items()})
    monkeypatch.setattr(step_times, "CASES", (dataclasses.replace(CASES[0], vocabulary=300),))
    monkeypatch.setattr(step_times, "AUTODIFF", dataclasses.replace(step_times.AUTODIFF, vocabulary=300))
    return take


def test_each_method_is_held_against_its_steps_without_the_first(steps_take):
    steps_take(2.0)
    found = list(compare(2, lambda text: None))
    assert [row.method for row in found] == [*BY_TURNS, *ALONE]
    for row in found:
        assert row.measured == 2.0 and row.ratio == row.modelled / 2.0
        assert row.ok == (1.5 <= row.modelled <= 2.5)


def test_the_command_fails_where_the_model_is_off(steps_take, capsys, strict_json):
    steps_take(1000.0)
    assert cli.main(["bench", "plan", "--steps", "1", "--json"]) == 1
    rows = [strict_json(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(BY_TURNS) + len(ALONE) and not any(row["ok"] for row in rows)
    assert rows[0]["case"]["seq_len"] == 256 and rows[0]["measured"] == 1000.0
