"""The time before the first step: signals while something is read, tokenised or written, and data from unusual places."""

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from command_driver import PATIENCE_S, SMALL, gone, saved_step, stored, wait_for

ROWS = '{"text": "the answer is forty two and the question is not known to anybody here or there"}\n'
TRAIN = ["train", *SMALL, "--out", "a/out"]
# A child that takes a while for each row, and says when it has begun.
SLOW_CHILD = """
import sys
if "mesp_core.data.tokenise_child" in sys.orig_argv:
    import json, pathlib, time
    loads = json.loads
    def slow(text, *arguments, **options):
        if b"forty two" in (text if isinstance(text, bytes) else text.encode()):
            pathlib.Path(STARTED).touch()
            time.sleep(0.2)
        return loads(text, *arguments, **options)
    json.loads = slow
"""

# Random weights that take half a minute to be written.
SLOW_WRITER = """
import time
import numpy
at_once = numpy.random.default_rng
def slow(seed=None):
    time.sleep(0.05)
    return at_once(seed)
numpy.random.default_rng = slow
"""


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def temporary(cache):
    """What is in the cache that has no name of its own yet."""
    return [path for path in cache.rglob(".*")]


def assert_interrupted(process, tmp_path, cache):
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and err.rstrip().endswith("mesp: interrupted."), err
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists() and temporary(cache) == []


def slowed(tmp_path, cache, code):
    """The environment of processes that run `code` when they begin."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(code)
    root = str(Path(__file__).resolve().parents[3])
    return {"MESP_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(tmp_path / "slow"), root])}


class TestTokenising:
    @pytest.fixture
    def tokenising(self, started, tmp_path, cache):
        """A run whose rows are being tokenised: (its process, the child)."""
        begun = tmp_path / "begun"
        environment = slowed(tmp_path, cache, SLOW_CHILD.replace("STARTED", repr(str(begun))))
        (tmp_path / "rows.jsonl").write_text(ROWS * 5000)
        process = started(*TRAIN, "--data", "rows.jsonl", env=environment)
        assert wait_for(begun.exists), "the child did not begin"
        [child] = psutil.Process(process.pid).children(recursive=True)
        assert (tmp_path / "a" / "out").is_dir() and len(temporary(cache)) == 1
        return process, child

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_leaves_nothing(self, tokenising, tmp_path, cache, number):
        process, child = tokenising
        process.send_signal(number)
        assert_interrupted(process, tmp_path, cache)
        assert gone([child])

    def test_two_signals_leave_nothing_either(self, tokenising, tmp_path, cache):
        process, child = tokenising
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGINT)
        assert_interrupted(process, tmp_path, cache)
        assert gone([child])

    def test_a_killed_parent_takes_the_child_along(self, tokenising):
        process, child = tokenising
        process.kill()
        process.communicate()
        assert gone([child])


class TestOtherWork:
    def test_a_signal_while_a_synthetic_model_is_written(self, started, tmp_path, cache):
        environment = slowed(tmp_path, cache, SLOW_WRITER)
        process = started(*TRAIN, "--model", "synthetic:qwen2.5-0.5b", env=environment)
        assert wait_for(lambda: list(cache.rglob("model.safetensors")))
        process.send_signal(signal.SIGTERM)
        assert_interrupted(process, tmp_path, cache)
        assert [path for path in cache.rglob("*") if path.is_file()] == []

    def test_a_signal_while_gradients_are_checked(self, started, tmp_path, cache):
        process = started("check", *SMALL, "--methods", "mesp,lean", env={"MESP_CACHE_DIR": str(cache)})
        child = wait_for(lambda: computing(process))
        assert child
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1 and err == "mesp: interrupted.\n"
        assert gone(child) and temporary(cache) == []


def computing(process):
    """The child of `mesp check` that computes, if it runs by now."""
    found = []
    with contextlib.suppress(psutil.Error):
        found = [
            child for child in psutil.Process(process.pid).children() if "mesp_core.bench.gradient_check" in child.cmdline()
        ]
    return found


class TestPipes:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
    def test_one_that_nobody_writes_to(self, started, tmp_path, cache, number):
        os.mkfifo(tmp_path / "rows.fifo")
        process = started(*TRAIN, "--data", "rows.fifo", env={"MESP_CACHE_DIR": str(cache)})
        assert wait_for(lambda: list(cache.rglob(".stream-*")))
        process.send_signal(number)
        assert_interrupted(process, tmp_path, cache)

    @pytest.mark.parametrize(
        "line",
        [
            "mesp ARGUMENTS --data /dev/stdin <rows.jsonl",
            "cat rows.jsonl | mesp ARGUMENTS --data /dev/stdin",
            "mesp ARGUMENTS --data <(cat rows.jsonl)",
            "mkfifo rows.fifo; cat rows.jsonl >rows.fifo & mesp ARGUMENTS --data rows.fifo",
            "ln -s /dev/stdin rows.link; mesp ARGUMENTS --data rows.link <rows.jsonl",
        ],
        ids=["redirected", "piped", "substituted", "named", "linked"],
    )
    def test_rows_are_read(self, in_shell, tmp_path, line):
        (tmp_path / "rows.jsonl").write_text(ROWS * 3)
        arguments = " ".join(["train", *SMALL, "--steps", "1", "--batch-size", "2", "--out", "out"])
        process = in_shell(line.replace("ARGUMENTS", arguments))
        assert process.returncode == 0, process.stderr
        assert "3 samples" in process.stdout and saved_step(tmp_path / "out") == 1
        assert stored(tmp_path / "out")["outcome"]["kind"] == "finished"

    @pytest.mark.parametrize(
        "data, code, words",
        [
            ("/dev/zero", 2, "is a device, which may have no end"),
            ("/dev/null", 1, "is empty"),
            ("/dev/stdin", 1, "is empty"),
            ("<(echo '{broken')", 1, "line 1: broken JSON"),
        ],
    )
    def test_or_a_sentence_says_why_not(self, in_shell, tmp_path, data, code, words):
        process = in_shell(f"mesp {' '.join(TRAIN)} --data {data} </dev/null")
        assert process.returncode == code and process.stderr.count("\n") == 1, process.stderr
        assert process.stderr.startswith("mesp: ") and words in process.stderr
        assert not (tmp_path / "a").exists()
