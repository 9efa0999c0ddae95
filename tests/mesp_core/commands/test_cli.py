"""The command line as a person or a program meets it: exit codes, messages of one line, nothing left behind."""

import json
import os
import zipfile

import pytest

from mesp_core.commands import cli
from mesp_core.runs import events

SMALL = ["--seq-len", "32", "--rank", "4"]


def assert_short(process, code, *words):
    """An exit code, and one or two lines on stderr that hold `words`."""
    assert process.returncode == code, process.stderr
    lines = process.stderr.splitlines()
    assert 1 <= len(lines) <= 2, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in process.stderr


USAGE = {
    "no command": ([], ["COMMAND", "--help"]),
    "unknown command": (["fly"], ["fly", "train"]),
    "unknown option": (["train", "--speed", "9"], ["--speed"]),
    "not a number": (["train", "--rank", "eight"], ["--rank", "eight"]),
    "a fraction of a step": (["train", "--steps", "1.5"], ["--steps", "1.5"]),
    "rank 0": (["train", "--rank", "0"], ["rank", "0", "1 to 4096"]),
    "negative rate": (["train", "--lr", "-1"], ["learning_rate", "-1", "above 0"]),
    "rate that is no number": (["train", "--lr", "nan"], ["learning_rate", "nan"]),
    "unknown preset": (["compare", "--preset", "fast"], ["fast", "first-run", "paper"]),
    "unknown optimizer": (["train", "--optimizer", "lion"], ["lion", "adamw"]),
    "unknown method": (["train", "--method", "magic"], ["magic", "mesp", "autodiff"]),
    "unknown method of several": (["compare", "--methods", "mesp,magic"], ["magic"]),
    "a method twice": (["compare", "--methods", "mesp,mesp"], ["mesp", "twice"]),
    "no methods": (["compare", "--methods", ","], ["methods"]),
    "unknown method option": (["train", "--method", "mesp:fast"], ["fast", "weights"]),
    "unknown module": (["train", "--target-modules", "q_proj,w_proj"], ["w_proj", "down_proj"]),
    "no modules": (["train", "--target-modules", ","], ["target_modules"]),
    "warm-up too long": (["train", "--steps", "5", "--warmup-steps", "5"], ["warmup_steps", "5"]),
    "missing model folder": (["train", "--model", "./nowhere"], ["./nowhere"]),
    "unknown synthetic model": (["train", "--model", "synthetic:gpt"], ["synthetic:gpt", "synthetic:qwen2.5-0.5b"]),
    "missing data": (["train", "--data", "nowhere.jsonl"], ["nowhere.jsonl"]),
    "longer than the model": (["train", "--seq-len", "1025"], ["seq_len", "1025", "1024"]),
    "data to nowhere": (["data", "wikitext2"], ["--out"]),
    "unknown data set": (["data", "wikitext3", "--out", "x.jsonl"], ["wikitext3", "wikitext2"]),
}


@pytest.mark.parametrize("arguments, words", USAGE.values(), ids=USAGE)
def test_what_cannot_be_asked_for(mesp, arguments, words):
    process = mesp(*arguments)
    assert_short(process, 2, "mesp: ", *words)
    assert process.stdout == ""
    assert list(mesp.cwd.iterdir()) == []


class TestBadInput:
    @pytest.fixture
    def data(self, tmp_path):
        """data(text) -> a data file."""

        def write(text):
            file = tmp_path / "data.jsonl"
            file.write_text(text)
            return file

        return write

    def test_a_truncated_checkpoint(self, mesp, tiny_copy):
        file = tiny_copy / "model.safetensors"
        os.truncate(file, file.stat().st_size // 2)
        assert_short(mesp("train", "--model", tiny_copy), 1, str(file))
        assert list(mesp.cwd.iterdir()) == []

    def test_a_broken_line(self, mesp, data):
        file = data("".join('{"text": "A sentence."}\n' for _ in range(6)) + '{"text": "A sent\n{"text": "More."}\n')
        assert_short(mesp("train", "--data", file), 1, str(file), "line 7")
        assert list(mesp.cwd.iterdir()) == []

    @pytest.mark.parametrize("text", ["", "\n\n  \n"])
    def test_empty_data(self, mesp, data, text):
        file = data(text)
        assert_short(mesp("compare", "--data", file), 1, str(file))

    def test_less_data_than_a_batch(self, mesp, data):
        file = data('{"text": "A sentence."}\n' * 3)
        assert_short(mesp("train", "--data", file, "--batch-size", "4"), 1, str(file), "3 samples", "batch of 4")

    def test_an_output_folder_below_a_file(self, mesp, tmp_path):
        (tmp_path / "file").write_text("kept")
        assert_short(mesp("train", *SMALL, "--out", tmp_path / "file" / "out"), 2, "out: ", str(tmp_path / "file"))
        assert (tmp_path / "file").read_text() == "kept"

    def test_an_output_folder_with_results(self, mesp, tmp_path):
        (tmp_path / "results.json").write_text("{}")
        assert_short(mesp("train", *SMALL, "--out", tmp_path), 2, "already holds")

    def test_as_json_it_is_an_event(self, mesp):
        process = mesp("train", "--json", "--rank", "0")
        [line] = process.stdout.splitlines()
        event = events.parse_event(line)
        assert isinstance(event, events.Error)
        assert (event.kind, event.exit_code, process.returncode) == ("usage", 2, 2)
        assert event.message in process.stderr

    def test_debug_shows_the_traceback(self, mesp):
        process = mesp("train", "--debug", "--model", "./nowhere")
        assert process.returncode == 2
        assert "Traceback" in process.stderr and "UsageError" in process.stderr
        assert process.stderr.splitlines()[-1].startswith("mesp: ")

    @pytest.mark.parametrize("debug", [False, True])
    def test_a_diverged_run(self, mesp, debug):
        """Its traceback is the worker's, and shown only when asked for."""
        options = ["--optimizer", "sgd", "--lr", "9", "--alpha", "1000", "--dtype", "float16"]
        process = mesp("train", *SMALL, *options, "--out", "out", *(["--debug"] if debug else []))
        assert process.returncode == 1
        assert "diverged" in process.stderr and "learning_rate (now 9)" in process.stderr
        assert ("Traceback" in process.stderr) == debug
        if not debug:
            assert_short(process, 1)

    def test_a_run_that_came_to_nothing_leaves_nothing(self, mesp):
        # a first step that takes longer than the meter needs to report
        process = mesp("train", *SMALL, "--seq-len", "256", "--batch-size", "32", "--memory-limit-mb", "4")
        assert_short(process, 1, "limit of 4 MB")
        assert list(mesp.cwd.iterdir()) == []


class TestDoctor:
    def test_it_measures(self, mesp, strict_json):
        process = mesp("doctor", "--json")
        assert process.returncode == 0, process.stderr
        [found] = [strict_json(line) for line in process.stdout.splitlines()]
        assert found["event"] == "doctor" and found["device"].startswith("Device(")
        assert found["float32_gflops"] > 0 and 5 < found["worker_footprint_after_import_mb"] < 100
        assert found["memory"]["total_mb"] >= found["memory"]["available_mb"] > 0
        assert found["frozen_matmul"] in ("quantized", "dequantize") and found["kernels"]
        for verdict in found["kernels"].values():
            assert verdict["quantized_matmul"] == "right" and verdict["backward_error"] <= 1e-5
        for word in ("blas", "meter", "thermal_state", "machine", "battery"):
            assert found[word]
        assert found["speed"]["measured"] and found["speed"]["products"] > found["speed"]["exponentials"] > 0

    def test_it_tells(self, mesp):
        process = mesp("doctor")
        assert process.returncode == 0, process.stderr
        for line in (
            "machine",
            "device",
            "blas",
            "frozen matmul",
            "memory meter",
            "quantized_matmul",
            "thermal state",
            "products",
        ):
            assert f"\n{line}" in "\n" + process.stdout

    def test_where_mlx_does_not_run_it_says_why(self, mesp, tmp_path):
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlx'] = None\n")
        process = mesp("doctor", python_path=tmp_path)
        assert_short(process, 1, "MLX does not run here", "mlx")


class TestData:
    @pytest.fixture
    def archive(self, tmp_path, monkeypatch):
        """The download, replaced: an archive with 1000 units of text in each split."""
        import huggingface_hub

        from mesp_core.data import wikitext2

        file = tmp_path / "archive.zip"
        with zipfile.ZipFile(file, "w") as out:
            for name in wikitext2.MEMBERS.values():
                out.writestr(name, " = Title = \n" + " some words of text \n" * 200)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *arguments, **options: str(file))
        return file

    @pytest.mark.parametrize("as_json", [False, True])
    def test_it_is_fetched(self, archive, tmp_path, capsys, strict_json, as_json):
        out = tmp_path / "new" / "wikitext2.jsonl"
        assert cli.main(["data", "wikitext2", "--out", str(out), *(["--json"] if as_json else [])]) == 0
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert rows and all([message["role"] for message in row] == ["user", "assistant"] for row in rows)
        said = capsys.readouterr().out
        if as_json:
            assert strict_json(said) == {"event": "data", "file": str(out), "rows": len(rows)}
        else:
            assert said == f"{len(rows)} rows in {out}\n"

    def test_what_is_there_is_not_overwritten(self, archive, tmp_path, capsys):
        out = tmp_path / "mine.jsonl"
        out.write_text("precious")
        assert cli.main(["data", "wikitext2", "--out", str(out)]) == 2
        assert out.read_text() == "precious" and str(out) in capsys.readouterr().err

    def test_offline_is_a_plain_sentence(self, monkeypatch, tmp_path, capsys):
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError

        def fail(*arguments, **options):
            raise LocalEntryNotFoundError("no connection")

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
        out = tmp_path / "wikitext2.jsonl"
        assert cli.main(["data", "wikitext2", "--out", str(out)]) == 1
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1 and "cannot be reached" in said and not out.exists()


class TestAtTheEdges:
    def test_help_and_version(self, mesp):
        for arguments in (["--help"], ["train", "--help"], ["--version"]):
            process = mesp(*arguments)
            assert process.returncode == 0 and process.stdout and process.stderr == ""

    def test_the_preset_decides_the_defaults_and_options_win(self, mesp):
        options = ["--preset", "paper", "--seq-len", "16", "--steps", "1", "--adapter-dtype", "float32"]
        process = mesp("train", *options, "--out", "out")
        assert process.returncode == 0, process.stderr
        config = json.loads((mesp.cwd / "out" / "results.json").read_text())["config"]
        assert (config["optimizer"], config["learning_rate"]) == ("sgd", 1e-4)
        assert (config["seq_len"], config["adapter_dtype"], config["methods"]) == (16, "float32", ["mesp"])

    def test_markup_in_a_path_is_only_text(self, mesp):
        process = mesp("train", *SMALL, "--steps", "1", "--out", "[bold]out[/nothing]")
        assert process.returncode == 0, process.stderr
        assert (mesp.cwd / "[bold]out[" / "nothing]" / "results.json").is_file()
        assert "[bold]out[/nothing]" in process.stdout

    def test_an_unexpected_error_is_one_line(self, monkeypatch, capsys):
        monkeypatch.setattr("mesp_core.commands.options.preset", lambda *arguments, **options: 1 / 0)
        assert cli.main(["train"]) == 1
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1 and "--debug" in said.err
        assert cli.main(["train", "--debug"]) == 1
        assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--method", ""],
        ["train", "--budget", ""],
        ["train", "--method", "", "--budget", "200MB"],
        ["compare", "--methods", ""],
        ["check", "--methods", ""],
        ["plan", "--methods", ""],
        ["plan", "--budget", ""],
        ["plan", "--methods", "", "--budget", "200MB"],
    ],
    ids=" ".join,
)
def test_what_is_given_but_empty_is_refused_and_not_taken_for_the_default(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("mesp: ") and err.count("\n") == 1 and "unexpected" not in err
    assert list(tmp_path.iterdir()) == []
