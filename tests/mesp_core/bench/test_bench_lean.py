"""`mesp bench lean` end to end on a model of two small blocks: trials in child processes, judged, printed."""

import pytest

from mesp_core.bench import lean
from mesp_core.bench.lean import Growth, Overhead, Peak, Ratio
from mesp_core.bench.trial import BASELINE_PEAK
from mesp_core.commands import cli
from mesp_core.models import synthetic

MODEL = "bench-small"
GEOMETRY = synthetic.GEOMETRIES["qwen2.5-0.5b"] | {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 512,
}
TOKENS = 192
# In bfloat16, by hand: rank 8, hidden 256, keys and values 2 heads of 64, MLP 1024.
ADAPTERS_OF_A_BLOCK = 2 * 8 * ((256 + 256) * 2 + (256 + 128) * 2 + (256 + 1024) * 3)
BUDGETED = f"lean:budget={BASELINE_PEAK}"
ROWS = (
    Peak(MODEL, TOKENS, "lean", 100),
    Peak(MODEL, TOKENS, "lean", 0.01, blocks=2, labelled=0.3),
    Overhead(MODEL, TOKENS, "lean", 1000),
    Growth(MODEL, 32, TOKENS, "lean", 1.0),
    Ratio(MODEL, TOKENS, "lean", "mebp", 1000),
    Ratio(MODEL, TOKENS, BUDGETED, "mebp"),
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The small model's rows instead of the real ones."""
    monkeypatch.setitem(synthetic.GEOMETRIES, MODEL, GEOMETRY)
    monkeypatch.setattr(lean, "ROWS", ROWS)


@pytest.fixture
def bench(capsys):
    """bench(*arguments) -> (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.main(["bench", "lean", *arguments])
        return code, *capsys.readouterr()

    return run


def test_rows_of_every_kind_in_json(bench, strict_json):
    code, out, err = bench("--rows", "memory,footprint,time", "--steps", "2", "--json")
    whole, cut, overhead, lean_time, budget_time = rows = [strict_json(line) for line in out.splitlines()]
    assert code == 1 and cut["ok"] is False, err  # 0.01 MB is more than anybody keeps to
    assert [row["ok"] for row in rows] == [True, False, True, True, None]
    assert all(row["event"] == "bench" and (row["measured"] > 0 or row is overhead) for row in rows)

    assert set(whole["peak_by_phase_mb"]) == {"forward", "loss", "backward"}
    assert whole["measured"] == max(whole["peak_by_phase_mb"].values())
    left_out = cut["left_out_mb"]
    assert left_out["adapters"] * 2**20 == ADAPTERS_OF_A_BLOCK
    assert left_out["block inputs"] * 2**20 == TOKENS * 256 * 2
    assert cut["measured"] == pytest.approx(max(cut["peak_by_phase_mb"].values()) + sum(left_out.values()))
    assert "2 of 3 blocks computed" in cut["note"] and "30% of the tokens" in cut["note"]
    # What was cut off and added is what is there when it is computed; fewer labels make less of a loss.
    for phase in ("forward", "backward"):
        added = cut["peak_by_phase_mb"][phase] + sum(left_out.values())
        assert added == pytest.approx(whole["peak_by_phase_mb"][phase], rel=0.1)
    # The same trial, made once.
    assert overhead["allocator_peak_mb"] == whole["measured"]
    assert overhead["measured"] == pytest.approx(whole["training_memory_mb"] - whole["measured"])

    assert [len(seconds) for seconds in lean_time["all_step_times_s"]] == [2, 2]  # the first of three is dropped
    assert lean_time["measured"] == pytest.approx(lean_time["step_time_s"][0] / lean_time["step_time_s"][1])
    mebp_peak = lean_time["allocator_peak_mb"][1]
    assert budget_time["allocator_peak_mb"][1] == mebp_peak
    assert lean_time["allocator_peak_mb"][0] < budget_time["allocator_peak_mb"][0] <= 1.1 * mebp_peak
    size = int(budget_time["key"].removeprefix("lean:budget=").removesuffix("KB"))
    assert 0.9 * mebp_peak <= size / 1024 <= mebp_peak
    assert err.count(f"  {budget_time['key']}: ") == 3


def test_a_table_and_what_is_done_meanwhile(bench):
    code, out, err = bench("--rows", f"growth,{MODEL}@{TOKENS}/lean", "--quick")
    assert code == 1  # two rows have that name, and one of them is not reached
    assert "to reach" in out and "MISSED" in out and "≤ 100 MB" in out and "MB/token" in out
    assert "2 of 3 blocks computed" in out
    assert err.count("allocator peak") == 4


def test_what_was_measured_before_a_failure_is_shown(bench, monkeypatch):
    monkeypatch.setattr(lean, "ROWS", (ROWS[0], Peak(MODEL, TOKENS, "lean:budget=1KB", 1)))
    code, out, err = bench()
    assert code == 2 and "mesp: budget: " in err
    assert "MB   ok" in out and "1KB" not in out


@pytest.mark.parametrize("rows", ["memory,speed", "speed"])
def test_rows_that_are_not_there(rows, bench):
    code, out, err = bench("--rows", rows)
    assert code == 2 and not out
    assert "--rows" in err and "'speed'" in err and "memory, growth" in err and f"{MODEL}@{TOKENS}/lean" in err


@pytest.mark.parametrize("arguments, word", [(["--rows", ","], "--rows"), (["--steps", "0"], "--steps")])
def test_nothing_to_measure(arguments, word, bench):
    code, out, err = bench(*arguments)
    assert code == 2 and word in err and not out


def test_quick_leaves_autodiff_out_unless_it_is_named(monkeypatch):
    monkeypatch.undo()
    groups = {row.group for row in lean.choose(None, quick=True)}
    assert groups == {"memory", "growth", "footprint", "time"}
    assert {row.group for row in lean.choose(None, quick=False)} == {*groups, "autodiff"}
    assert [row.to for row in lean.choose("autodiff", quick=True)] == ["autodiff", "autodiff:grad-checkpoint"]
