"""The command line as a person or a program meets it: exit codes, one-line messages, JSON, Ctrl-C, nothing left behind."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

import mesp_core
from mesp_core import cli, events
from mesp_core.adapter import load_adapter

ROOT = Path(mesp_core.__file__).parent.parent
COMMAND = [sys.executable, "-m", "mesp_core.cli"]
SMALL = ["--seq-len", "32", "--rank", "4"]
ENDLESS = ["--steps", "100000"]


def environment(*python_path):
    """Ours, with the package to be found from any working directory."""
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, [*python_path, ROOT])), "COLUMNS": "200"}


@pytest.fixture
def mesp(tmp_path):
    """mesp(*arguments, python_path=()) -> the finished process, run in tmp_path/cwd."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()

    def run(*arguments, python_path=()):
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment(*python_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )

    run.cwd = cwd
    return run


@pytest.fixture
def started(tmp_path):
    """started(*arguments) -> a running process, and the processes below it; all are ended with the test."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_to_step(process, number):
    """Read its JSON events up to that step; what was read, and the workers that are alive then."""
    heard = []
    for line in process.stdout:
        heard.append(events.parse_event(line))
        if isinstance(heard[-1], events.Step) and heard[-1].step == number:
            workers = psutil.Process(process.pid).children(recursive=True)
            assert len(workers) == 1
            return heard, workers
    raise AssertionError(f"ended before step {number}: {process.stderr.read()}")


def gone(workers, timeout=30):
    """Whether they end within that many seconds."""
    return not psutil.wait_procs(workers, timeout=timeout)[1]


def strict(line):
    """JSON without the NaN and Infinity that only Python reads."""

    def refuse(name):
        raise AssertionError(f"not JSON: {name} in {line}")

    return json.loads(line, parse_constant=refuse)


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
        assert "diverged" in process.stderr and "--lr (now 9)" in process.stderr
        assert ("Traceback" in process.stderr) == debug
        if not debug:
            assert_short(process, 1)

    def test_a_run_that_came_to_nothing_leaves_nothing(self, mesp):
        process = mesp("train", *SMALL, "--memory-limit-mb", "4")
        assert_short(process, 1, "limit of 4 MB")
        assert list(mesp.cwd.iterdir()) == []


class TestCompare:
    def test_without_arguments_two_methods_learn_in_under_a_minute(self, mesp):
        start = time.monotonic()
        process = mesp("compare")
        assert process.returncode == 0, process.stderr
        assert time.monotonic() - start < 60
        [file] = mesp.cwd.glob("runs/*/results.json")
        results = json.loads(file.read_text())
        assert list(results["methods"]) == ["mebp", "mesp"]
        for method, result in results["methods"].items():
            assert len(result["steps"]) == 20
            assert result["summary"]["loss_end"] <= 0.9 * result["summary"]["loss_start"]
            tree, scale = load_adapter(file.parent / method / "adapter")
            assert len(tree) == 28 and scale == 2.0
        assert results["methods"]["mesp"]["summary"]["max_loss_difference"] <= 2e-6
        assert sorted(path.name for path in file.parent.iterdir()) == ["mebp", "mesp", "results.json"]
        for text in ("s/step", "tokens/s", "allocator peak", "footprint peak", "training memory", "final loss"):
            assert text in process.stdout
        assert str(file.relative_to(mesp.cwd)) in process.stdout
        assert f"step 20/20  loss {results['methods']['mesp']['steps'][-1]['loss']:.4f}" in process.stdout

    def test_json_prints_events_and_summaries_and_nothing_else(self, mesp):
        process = mesp("compare", "--json", *SMALL, "--steps", "3", "--methods", "mesp,mesp-store-h", "--out", "out")
        assert process.returncode == 0, process.stderr
        heard, summaries = [], []
        for line in process.stdout.splitlines():
            values = strict(line)
            if values["event"] == "summary":
                summaries.append(values)
            else:
                heard.append(events.parse_event(line))
        assert [s["method"] for s in summaries] == ["mesp", "mesp-store-h"]
        steps = [event for event in heard if isinstance(event, events.Step)]
        assert [(step.method, step.step) for step in steps] == [(s["method"], n) for s in summaries for n in (1, 2, 3)]
        assert summaries[0]["final_loss"] == steps[2].loss and summaries[1]["max_loss_difference"] <= 2e-6
        stored = json.loads((mesp.cwd / "out" / "results.json").read_text())
        assert [step.to_dict() for step in steps[:3]] == stored["methods"]["mesp"]["steps"]

    def test_options_of_a_method_get_a_folder_of_their_own(self, mesp):
        process = mesp("train", *SMALL, "--steps", "1", "--method", "mesp:weights=resident", "--out", "out")
        assert process.returncode == 0, process.stderr
        assert sorted(path.name for path in (mesp.cwd / "out").iterdir()) == ["mesp-weights=resident", "results.json"]

    def test_on_a_terminal_there_is_a_progress_line(self, tmp_path):
        """One that is redrawn in place and gone at the end; results still go to stdout."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "train", *SMALL, "--steps", "30", "--out", str(tmp_path / "out")],
            env=environment() | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(ours)
        out = process.communicate()[0].decode()
        text = shown.decode()
        assert process.returncode == 0, text
        assert "loss" in text and "s/step" in text and "/30" in text and " MB" in text
        assert "Traceback" not in text and "step 1/30" not in out
        assert "results in" in out


class TestEndings:
    def test_ctrl_c_stops_after_the_step_and_saves(self, started, tmp_path):
        process = started("compare", "--json", *SMALL, *ENDLESS, "--methods", "mesp,mebp", "--out", "out")
        _, workers = read_to_step(process, 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err and "Ctrl-C again" in err
        heard = [events.parse_event(line) for line in out.splitlines() if strict(line)["event"] != "summary"]
        [done] = [event for event in heard if isinstance(event, events.Done)]
        assert (done.method, done.outcome) == ("mesp", "stopped") and done.steps >= 3
        assert {event.method for event in heard} == {"mesp"}
        load_adapter(tmp_path / "out" / "mesp" / "adapter")
        stored = json.loads((tmp_path / "out" / "results.json").read_text())
        assert stored["methods"]["mesp"]["outcome"]["kind"] == "stopped"
        assert len(stored["methods"]["mesp"]["steps"]) == done.steps
        assert gone(workers)

    def test_ctrl_c_twice_ends_at_once(self, started, tmp_path):
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        _, [worker] = read_to_step(process, 2)
        worker.suspend()  # so that the first one cannot be obeyed
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "ended at once, as asked" in err and "Traceback" not in err
        assert gone([worker])
        assert not (tmp_path / "out" / "mesp").exists()

    def test_a_command_line_that_is_killed_takes_its_worker_along(self, started, tmp_path):
        """The worker notices that nobody listens, saves what was learnt and ends."""
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        _, workers = read_to_step(process, 2)
        process.kill()
        process.communicate()
        assert gone(workers)
        load_adapter(tmp_path / "out" / "mesp" / "adapter")

    def test_a_reader_that_leaves(self, started):
        """As with `| head -1`: no traceback, no worker left."""
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        _, workers = read_to_step(process, 1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 1
        assert "Traceback" not in err and "BrokenPipe" not in err
        assert gone(workers)

    def test_ctrl_c_between_the_start_and_the_first_worker(self, monkeypatch, capsys, tmp_path):
        """Nothing was run, so nothing is wrong and nothing is left."""
        from mesp_core import comparison

        class InterruptedSession(comparison.Session):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(comparison, "Session", InterruptedSession)
        code = cli.main(["train", *SMALL, "--steps", "2", "--out", str(tmp_path / "out")])
        said = capsys.readouterr().err
        assert "unexpected" not in said and code in (0, 1), said
        assert not (tmp_path / "out").exists()


class TestCheck:
    def check(self, process):
        return [strict(line) for line in process.stdout.splitlines()]

    @pytest.mark.parametrize("batch", [[], ["--batch-size", "2"]], ids=["one sample", "two, one of them padded"])
    def test_the_gradients_of_tiny_are_right(self, mesp, batch):
        process = mesp("check", "--json", *SMALL, *batch)
        assert process.returncode == 0, process.stderr
        results = self.check(process)
        assert [result["method"] for result in results] == ["mebp", "mesp", "mesp-store-h"]
        for result in results:
            assert result["event"] == "check" and result["ok"] is True and result["dtype"] == "float32"
            assert result["tensors"] == 56
            # all but exact, yet computed in another way
            assert 0 < result["gradient_difference"] <= 1e-5 and 0 < result["worst_tensor_difference"] <= 5e-5
            assert result["loss_difference"] <= 2e-6
        assert list(mesp.cwd.iterdir()) == []

    def test_a_wrong_gradient_is_found(self, mesp, tmp_path):
        """A thousandth too much in one op: mebp differentiates the forward and does not use it in its blocks."""
        plant = """
import sys
if "mesp_core.check" in getattr(sys, "orig_argv", []):
    from mesp_core.ops import rms_norm
    right = rms_norm.backward
    rms_norm.backward = lambda g, x, w, eps: right(g, x, w, eps) * (1.001 if g.shape == x.shape else 1)
"""
        (tmp_path / "sitecustomize.py").write_text(plant)
        process = mesp("check", "--json", *SMALL, "--methods", "mesp", python_path=[tmp_path])
        [result] = self.check(process)
        assert process.returncode == 1 and result["ok"] is False
        assert 1e-4 < result["gradient_difference"] < 1e-1
        process = mesp("check", *SMALL, "--methods", "mesp", python_path=[tmp_path])
        assert process.returncode == 1 and "OUT OF BOUNDS" in process.stdout

    @pytest.fixture
    def compute(self, small_config, monkeypatch):
        """compute(damage) -> mesp's check result where `damage` changed each block's gradients."""
        from mesp_core import check
        from mesp_core.methods import build
        from mesp_core.prepare import prepare

        config = small_config(seq_len=16)
        prepared = prepare(config)
        request = {
            "config": config.to_dict(),
            "methods": ["mesp"],
            "model_folder": str(prepared.source.path),
            "tokens_folder": str(prepared.tokens.path),
        }

        def run(damage):
            right = build.BLOCK_BACKWARDS["mesp"]

            def wrong(*arguments):
                dx, gradients = right(*arguments)
                damage(gradients)
                return dx, gradients

            monkeypatch.setitem(build.BLOCK_BACKWARDS, "mesp", wrong)
            [result] = check._compute(request)
            return result

        return run

    def test_one_wrong_tensor_is_found_and_named(self, compute):
        layers = iter(range(3, -1, -1))

        def damage(gradients):
            if next(layers) == 2:
                da, db = gradients["up_proj"]
                gradients["up_proj"] = (da, db * 1.0002)

        result = compute(damage)
        assert not result.ok
        assert result.worst_tensor == "model.layers.2.mlp.up_proj.lora_b"
        assert result.worst_tensor_difference == pytest.approx(2e-4, rel=0.05)

    def test_a_gradient_that_is_no_number_is_found(self, compute):
        def damage(gradients):
            da, db = gradients["q_proj"]
            gradients["q_proj"] = (da * float("nan"), db)

        result = compute(damage)
        assert not result.ok and "q_proj.lora_a" in result.worst_tensor

    def test_a_tensor_left_out_is_found(self, compute):
        assert not compute(lambda gradients: gradients.pop("k_proj")).ok

    def test_a_result_that_is_no_number_is_json(self, compute):
        def damage(gradients):
            da, db = gradients["q_proj"]
            gradients["q_proj"] = (da * float("nan"), db)

        strict(json.dumps(compute(damage).to_dict()))


class TestDoctor:
    def test_it_measures(self, mesp):
        process = mesp("doctor", "--json")
        assert process.returncode == 0, process.stderr
        [found] = [strict(line) for line in process.stdout.splitlines()]
        assert found["event"] == "doctor" and found["device"].startswith("Device(")
        assert found["float32_gflops"] > 0 and 5 < found["worker_footprint_after_import_mb"] < 100
        assert found["memory"]["total_mb"] >= found["memory"]["available_mb"] > 0
        assert found["frozen_matmul"] in ("quantized", "dequantize") and found["kernels"]
        for verdict in found["kernels"].values():
            assert verdict["quantized_matmul"] == "right" and verdict["backward_error"] <= 1e-5
        for word in ("blas", "meter", "thermal_state", "machine", "battery"):
            assert found[word]

    def test_it_tells(self, mesp):
        process = mesp("doctor")
        assert process.returncode == 0, process.stderr
        for line in ("machine", "device", "blas", "frozen matmul", "memory meter", "quantized_matmul", "thermal state"):
            assert f"\n{line}" in "\n" + process.stdout


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
    def test_it_is_fetched(self, archive, tmp_path, capsys, as_json):
        out = tmp_path / "new" / "wikitext2.jsonl"
        assert cli.main(["data", "wikitext2", "--out", str(out), *(["--json"] if as_json else [])]) == 0
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert rows and all([message["role"] for message in row] == ["user", "assistant"] for row in rows)
        said = capsys.readouterr().out
        if as_json:
            assert strict(said) == {"event": "data", "file": str(out), "rows": len(rows)}
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
        monkeypatch.setattr(cli, "preset", lambda *arguments, **options: 1 / 0)
        assert cli.main(["train"]) == 1
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1 and "--debug" in said.err
        assert cli.main(["train", "--debug"]) == 1
        assert "Traceback" in capsys.readouterr().err
