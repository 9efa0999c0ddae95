"""Methods on one configuration: equal losses, honest figures, files that hold what happened."""

import csv
import io
import json
import os
import statistics
from dataclasses import replace

import pytest

from mesp_core.errors import UsageError
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.runs import events, paper
from mesp_core.runs.comparison import Comparison, compare
from mesp_core.runs.out_folder import RESULTS_FILE, OutFolder, claim_out
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.prepare import prepare
from mesp_core.runs.results import COLUMNS, MethodResult, Results
from mesp_core.settings.run_config import preset

METHODS = ["mebp", "mesp", "mesp-store-h", "autodiff"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory, small_config):
    """Four methods, 20 steps of adamw on tiny: the comparison, and all its events."""
    config = small_config(steps=20, optimizer="adamw", rank=8)
    out = tmp_path_factory.mktemp("compared") / "out"
    comparison = Comparison(config, METHODS, prepare(config), claim_out(out))
    return comparison, list(comparison.run())


@pytest.fixture
def stored(compared):
    """The results file as it was written."""
    return json.loads((compared[0].out / RESULTS_FILE).read_text())


def losses(stored, method):
    return [step["loss"] for step in stored["methods"][method]["steps"]]


class TestFourMethods:
    def test_each_ran_to_its_end_after_the_one_before(self, compared):
        comparison, heard = compared
        assert comparison.outcome.kind == "finished" and comparison.outcome.ok
        done = [event.method for event in heard if isinstance(event, events.Done)]
        assert done == METHODS
        assert list(dict.fromkeys(event.method for event in heard)) == METHODS
        assert sum(isinstance(event, events.Step) for event in heard) == 80

    def test_the_losses_are_the_same(self, stored):
        first = losses(stored, "mebp")
        assert len(first) == 20 and len(set(first)) == 20
        for method in ("mesp", "mesp-store-h"):
            assert losses(stored, method) == pytest.approx(first, rel=2e-6, abs=0)
        assert losses(stored, "autodiff")[0] == pytest.approx(first[0], rel=2e-6, abs=0)
        assert losses(stored, "autodiff") == pytest.approx(first, rel=1e-3)

    def test_it_learns(self, stored):
        for method in METHODS:
            summary = stored["methods"][method]["summary"]
            assert summary["loss_end"] <= 0.9 * summary["loss_start"]

    def test_autodiff_has_no_phases_of_its_own(self, stored):
        [step, *_] = stored["methods"]["autodiff"]["steps"]
        assert set(step["allocator_peak_by_phase_mb"]) == {"all"}

    def test_adapters_are_where_they_are_said_to_be(self, compared):
        comparison, _ = compared
        for method in METHODS:
            folder = comparison.out / method / "adapter"
            assert comparison.adapter_folder(method) == folder
            assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
            assert json.loads((folder / "adapter_config.json").read_text())["mesp"]["method"] == method


class TestAWholeRunInOneCall:
    def test_it_prepares_runs_and_gives_the_results(self, small_config, tmp_path):
        heard = []
        results = compare(small_config(steps=1), ["mebp", "mesp"], tmp_path / "out", on_event=heard.append)
        assert [results.methods[name].outcome.kind for name in ("mebp", "mesp")] == ["finished", "finished"]
        assert {event.method for event in heard} == {"mebp", "mesp"}
        assert json.loads((tmp_path / "out" / RESULTS_FILE).read_text())["methods"].keys() == results.methods.keys()

    def test_what_the_listener_raises_ends_it(self, small_config, tmp_path):
        def refuse(event):
            raise KeyError(event.method)

        with pytest.raises(KeyError, match="mesp"):
            compare(small_config(steps=1), ["mesp"], tmp_path / "out", on_event=refuse)
        assert not (tmp_path / "out").exists()  # nothing was done, so nothing is left


class TestTheFile:
    def test_it_comes_back_as_it_was(self, compared, stored):
        loaded = Results.load(compared[0].out / RESULTS_FILE)
        for results in (loaded, compared[0].results):
            assert json.loads("".join(results.to_json())) == stored

    def test_it_holds_what_others_build_on(self, stored):
        assert stored["schema"] == 1 and stored["paper"] == []
        assert stored["config"]["methods"] == METHODS and stored["config"]["scale"] == 16.0 / 8
        assert stored["config"]["interleave"] is False
        assert stored["config"]["rank"] == 8 and stored["config"]["optimizer"] == "adamw"
        assert {"system", "cpu", "packages", "memory_total_mb", "low_power_mode", "memory_meter"} <= set(stored["machine"])
        for method in METHODS:
            entry = stored["methods"][method]
            assert entry["outcome"]["kind"] == "finished"
            assert entry["loaded"]["baseline_mb"] > 0 and entry["loaded"]["device_info"] and entry["memory"]
            assert [step["step"] for step in entry["steps"]] == list(range(1, 21))
            for step in entry["steps"]:
                assert step["event"] == "step" and step["method"] == method
                assert None not in (step["footprint_start_mb"], step["footprint_end_mb"], step["footprint_peak_mb"])

    def test_the_summary_is_what_the_steps_say(self, stored):
        first = stored["methods"]["mebp"]
        for method, entry in stored["methods"].items():
            steps, summary = entry["steps"], entry["summary"]
            of_losses, seconds = [s["loss"] for s in steps], sorted(s["step_time_s"] for s in steps)
            expected = {
                "steps": 20,
                "step_time_s": (seconds[9] + seconds[10]) / 2,
                "tokens_per_s": sum(s["tokens"] for s in steps) / sum(seconds),
                "allocator_peak_mb": max(max(s["allocator_peak_by_phase_mb"].values()) for s in steps),
                "final_loss": of_losses[19],
                "loss_start": statistics.fmean(of_losses[:5]),
                "loss_end": statistics.fmean(of_losses[15:]),
                "training_memory_mb": summary["footprint_peak_mb"] - entry["loaded"]["baseline_mb"],
            }
            assert {name: summary[name] for name in expected} == pytest.approx(expected)
            assert summary["footprint_peak_mb"] >= max(s["footprint_peak_mb"] for s in steps)
            for phase, peak in summary["allocator_peak_by_phase_mb"].items():
                assert peak == max(s["allocator_peak_by_phase_mb"][phase] for s in steps)
            if method == "mebp":
                assert summary["reduction"] is None and summary["max_loss_difference"] is None
                continue
            differences = [abs(a - b["loss"]) / b["loss"] for a, b in zip(of_losses, first["steps"], strict=True)]
            assert summary["max_loss_difference"] == pytest.approx(max(differences))
            ratio = summary["training_memory_mb"] / first["summary"]["training_memory_mb"]
            assert summary["reduction"] == pytest.approx(1 - ratio)

    def test_a_csv_row_for_every_step(self, compared, stored):
        rows = list(csv.DictReader(io.StringIO(compared[0].results.to_csv())))
        steps = [step for method in METHODS for step in stored["methods"][method]["steps"]]
        assert len(rows) == len(steps) == 80
        for row, step in zip(rows, steps, strict=True):
            assert (row["method"], int(row["step"]), float(row["loss"])) == (step["method"], step["step"], step["loss"])
            for phase in ("forward", "backward", "all"):
                value = row[f"allocator_peak_{phase}_mb"]
                expected = step["allocator_peak_by_phase_mb"].get(phase)
                assert value == "" if expected is None else float(value) == expected

    def test_a_table_row_for_every_method(self, compared, stored):
        heading, rule, *rows = compared[0].results.to_markdown().splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (heading, rule, *rows)]
        assert cells[0] == [column.heading for column in COLUMNS]
        assert all(len(row) == len(COLUMNS) for row in cells) and set("".join(cells[1])) == {"-", ":"}
        assert [row[0] for row in cells[2:]] == METHODS
        at = cells[0].index("final loss")
        for row, method in zip(cells[2:], METHODS, strict=True):
            assert row[at] == f"{stored['methods'][method]['summary']['final_loss']:.4f}"
        assert cells[2][cells[0].index("less than first")] == "–"

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "null", '{"config": {}, "machine": {}, "methods": []}', '{"methods": {"mesp": {}}}', "\xff"]
    )
    def test_other_files_are_refused(self, tmp_path, text):
        file = tmp_path / "results.json"
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match=r"results\.json: not a results file"):
            Results.load(file)

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="not a results file"):
            Results.load(tmp_path / "none.json")


class TestASummaryOfLittle:
    """Methods that came to nothing have no figures, and divide by nothing."""

    def test_no_steps(self):
        results = Results({}, {})
        results.methods = {"mebp": MethodResult(), "mesp": MethodResult(outcome=Outcome("crashed", "mesp: gone."))}
        for row in results.rows():
            assert {row[column.key] for column in COLUMNS[1:]} == {None}
        assert results.to_markdown().count("–") == 2 * (len(COLUMNS) - 1)
        assert results.to_csv().strip() == ""

    def test_a_first_method_without_memory_gives_no_reduction(self):
        step = events.Step("mesp", 1, 2.0, 0.5, 10, 10, 0.1, 5.0, {"all": 5.0}, footprint_peak_mb=30.0)
        results = Results({}, {})
        results.methods = {"mebp": MethodResult(), "mesp": MethodResult(steps=[step])}
        summary = results.summary("mesp")
        assert summary["reduction"] is None and summary["max_loss_difference"] is None
        assert summary["final_loss"] == 2.0 and summary["footprint_peak_mb"] == 30.0


# DESIGN.md, section 7: (model, tokens, rank) -> {method: (MB, seconds or None)}
PAPER = {
    ("qwen2.5-0.5b", 256, 8): {"mebp": (360.8, 0.68), "mesp": (136.2, 0.86)},
    ("qwen2.5-1.5b", 256, 8): {"mebp": (516.2, 1.66), "mesp": (262.6, 2.17)},
    ("qwen2.5-3b", 256, 8): {"mebp": (637.6, 3.21), "mesp": (368.4, 4.09), "mesp-store-h": (398.5, 3.85)},
    ("qwen2.5-0.5b", 128, 8): {"mebp": (252.7, None), "mesp": (110.7, None)},
    ("qwen2.5-0.5b", 512, 8): {"mebp": (582.4, None), "mesp": (245.8, None)},
    ("qwen2.5-0.5b", 1024, 8): {"mebp": (1050.3, None), "mesp": (513.6, None)},
    ("qwen2.5-0.5b", 256, 4): {"mebp": (355.2, None), "mesp": (132.8, None)},
    ("qwen2.5-0.5b", 256, 16): {"mebp": (372.4, None), "mesp": (143.5, None)},
    ("qwen2.5-0.5b", 256, 32): {"mebp": (395.8, None), "mesp": (158.2, None)},
    ("qwen2.5-1.5b", 512, 8): {},
    ("qwen2.5-3b", 256, 16): {},
    ("qwen2.5-0.5b", 255, 8): {},
    ("llama-3.2-1b", 256, 8): {},
    ("tiny", 256, 8): {},
}


@pytest.fixture(scope="module")
def checkpoint_of():
    """checkpoint_of(name) -> tiny's checkpoint with the sizes of another."""
    from mesp_core.files.bundled import bundled_path
    from mesp_core.models.synthetic import GEOMETRIES

    tiny = open_checkpoint(bundled_path("tiny"))

    def make(name):
        fields = ("hidden_size", "num_hidden_layers", "vocab_size")
        sizes = {field: GEOMETRIES[name][field] for field in fields} if name in GEOMETRIES else {}
        return replace(tiny, architecture=replace(tiny.architecture, **sizes))

    return make


class TestPaperRows:
    @pytest.mark.parametrize("key", PAPER, ids=lambda key: "-".join(map(str, key)))
    def test_exactly_the_papers_own(self, key, checkpoint_of):
        name, seq_len, rank = key
        config = preset("paper", seq_len=seq_len, rank=rank, model=f"synthetic:{name}")
        rows = paper.figures_for(config, checkpoint_of(name))
        assert {row["method"]: (row["memory_mb"], row.get("step_time_s")) for row in rows} == PAPER[key]
        assert len(rows) == len(PAPER[key])

    def test_none_is_left_over(self):
        """Every row of the data file is one of DESIGN.md's."""
        assert len(paper.paper_figures()["figures"]) == sum(map(len, PAPER.values()))

    @pytest.mark.parametrize(
        "change",
        [
            {"batch_size": 2},
            {"grad_accumulation": 2},
            {"optimizer": "adamw"},
            {"optimizer": "adam"},
            {"target_modules": PROJECTIONS[:2]},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_none_for_another_setting(self, change, checkpoint_of):
        assert paper.figures_for(preset("paper"), checkpoint_of("qwen2.5-0.5b"))
        assert paper.figures_for(preset("paper", **change), checkpoint_of("qwen2.5-0.5b")) == []

    @pytest.mark.parametrize("change", [{"bits": 8}, {"bits": None, "group_size": None}, {"group_size": 32}], ids=str)
    def test_none_for_another_quantisation(self, change, checkpoint_of):
        checkpoint = checkpoint_of("qwen2.5-0.5b")
        linears = {path: replace(linear, **change) for path, linear in checkpoint.linears.items()}
        assert paper.figures_for(preset("paper"), replace(checkpoint, linears=linears)) == []

    def test_they_get_into_the_results(self, checkpoint_of, tmp_path):
        config = preset("paper")
        prepared = replace(prepare(preset("first-run")), checkpoint=checkpoint_of("qwen2.5-0.5b"))
        results = Comparison(config, ["mesp"], prepared, OutFolder(tmp_path)).results
        assert [row["memory_mb"] for row in results.paper] == [360.8, 136.2]
        results.save(tmp_path / "results.json")
        assert Results.load(tmp_path / "results.json").paper == results.paper


class TestAMethodThatDoesNotFinish:
    @pytest.fixture
    def comparison(self, small_config, tiny_copy, tmp_path):
        """comparison(methods, **changes) -> one on a copy of tiny that may be damaged."""

        def make(methods, **changes):
            config = small_config(model=str(tiny_copy), **changes)
            return Comparison(config, methods, prepare(config), claim_out(tmp_path / "out"))

        return make

    @pytest.fixture
    def cut_short(self, tiny_copy):
        file = tiny_copy / "model.safetensors"
        return lambda: os.truncate(file, file.stat().st_size - 1000)

    def test_a_first_one_that_fails_leaves_no_folder(self, comparison, cut_short, tmp_path):
        compare = comparison(["mebp", "mesp"])
        cut_short()
        heard = list(compare.run())
        assert compare.outcome.kind == "checkpoint" and compare.outcome.exit_code == 1
        assert {event.method for event in heard} == {"mebp"}  # the second was not tried
        assert not (tmp_path / "out").exists()

    def test_a_second_one_that_fails_leaves_the_first_ones_results(self, comparison, cut_short, tmp_path):
        compare = comparison(["mesp", "mebp", "mesp-store-h"], steps=2)
        heard = []
        for event in compare.run():
            heard.append(event)
            if isinstance(event, events.Done):
                cut_short()
        assert compare.outcome.kind == "checkpoint"
        assert {event.method for event in heard} == {"mesp", "mebp"}
        stored = Results.load(tmp_path / "out" / RESULTS_FILE).methods
        assert stored["mesp"].outcome.kind == "finished" and len(stored["mesp"].steps) == 2
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mesp", RESULTS_FILE]
        assert compare.results.methods["mebp"].outcome.kind == "checkpoint"

    def test_the_file_says_that_the_second_one_failed(self, comparison, cut_short, tmp_path):
        compare = comparison(["mesp", "mebp"], steps=1)
        for event in compare.run():
            if isinstance(event, events.Done):
                cut_short()
        stored = Results.load(tmp_path / "out" / RESULTS_FILE).methods
        assert "mebp" in stored and stored["mebp"].outcome.kind == "checkpoint"

    @pytest.mark.parametrize("how, kind", [("stop", "stopped"), ("kill", "killed")])
    def test_ending_one_starts_no_other(self, comparison, how, kind, tmp_path):
        compare = comparison(["mebp", "mesp"], steps=100_000)
        heard = []
        for event in compare.run():
            heard.append(event)
            if isinstance(event, events.Step) and event.step == 2:
                getattr(compare, how)()
        assert compare.outcome.kind == kind
        assert {event.method for event in heard} == {"mebp"}
        stored = Results.load(tmp_path / "out" / RESULTS_FILE).methods
        assert list(stored) == ["mebp"] and stored["mebp"].outcome.kind == kind
        assert (tmp_path / "out" / "mebp" / "adapter").exists() == (how == "stop")

    def test_stopped_before_it_began(self, comparison, tmp_path):
        compare = comparison(["mebp", "mesp"])
        compare.stop()
        assert list(compare.run()) == []
        assert compare.outcome is None and not (tmp_path / "out").exists()

    def test_leaving_early_ends_the_worker(self, comparison):
        import psutil

        compare = comparison(["mesp"], steps=100_000)
        assert compare.sessions == ()
        for event in compare.run():
            if isinstance(event, events.Step):
                [session] = compare.sessions
                assert session.method == "mesp" and psutil.pid_exists(session.pid)
                break
        assert not psutil.pid_exists(session.pid) and compare.sessions == ()


def test_the_papers_rows_stand_beneath_ours_in_the_table(compared):
    ours = compared[0].results
    figures = [row for row in paper.paper_figures()["figures"] if row["table"] == 1][:2]
    with_paper = Results(ours.config, ours.machine, figures)
    with_paper.methods = ours.methods
    extra = with_paper.to_markdown().splitlines()[2 + len(METHODS) :]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in extra] == [
        ["mebp (paper, iPhone 17 Pro)", "0.680", "–", "–", "360.8", "–", "–", "–", "–"],
        ["mesp (paper, iPhone 17 Pro)", "0.860", "–", "–", "136.2", "–", "–", "–", "–"],
    ]


@pytest.mark.parametrize("interleave", [False, True])
def test_results_that_cannot_be_written_cost_no_training(small_config, tmp_path, monkeypatch, interleave):
    monkeypatch.setattr("mesp_core.runs.comparison.SAVE_EVERY_S", 0.0)
    config = small_config(steps=6)
    comparison = Comparison(config, ["mebp", "mesp"], prepare(config), claim_out(tmp_path / "out"), interleave=interleave)
    heard = []
    for event in comparison.run():
        heard.append(event)
        if isinstance(event, events.Step) and event.step == 2 and not (comparison.out / RESULTS_FILE).is_dir():
            (comparison.out / RESULTS_FILE).unlink(missing_ok=True)
            (comparison.out / RESULTS_FILE).mkdir()  # what a name that cannot be written looks like
    assert {method: result.outcome.kind for method, result in comparison.results.methods.items()} == {
        "mebp": "finished",
        "mesp": "finished",
    }
    assert all((comparison.adapter_folder(method) / "adapters.safetensors").is_file() for method in ("mebp", "mesp"))
    assert "cannot be written" in comparison.problem
    warnings = [event for event in heard if isinstance(event, events.Log) and event.level == "warning"]
    assert len(warnings) == 1 and "cannot be written" in warnings[0].message


def test_a_diverged_loss_leaves_a_results_file_that_is_json(tmp_path, strict_json, compared):
    results = Results({}, {})
    step = next(event for event in compared[1] if isinstance(event, events.Step))
    results.add(replace(step, loss=float("nan")))
    results.save(tmp_path / "results.json")
    assert strict_json((tmp_path / "results.json").read_text())["methods"][step.method]["steps"][0]["loss"] is None
