import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from mesp_core.data.tokenise import tokenise
from mesp_core.errors import CheckpointError, DataError, MespError, UsageError

TEXTS = [{"text": "hello world"}, {"text": "the quick brown fox jumps over the lazy dog"}]


def entries(cache):
    return sorted(path for path in (cache / "tokens").iterdir() if not path.name.startswith("."))


def leftovers(cache):
    return [path for path in (cache / "tokens").iterdir() if path.name.startswith(".")]


def test_samples_from_the_child_then_from_the_cache(plain_model, write, cache, no_child):
    data = write([*TEXTS, {"text": ""}])
    first = tokenise(data, plain_model, seq_len=4, loss_on="all", vocab_size=320)
    assert first.rows == 3 and first.skipped == 1 and first.kind == "text"
    assert first.path == entries(cache)[0] and not leftovers(cache)
    assert first.line(0) == 1 and first.line(len(first) - 1) == 2
    assert first.ids.dtype == np.int32 and first.mask.dtype == np.uint8
    assert first.total_tokens == sum(len(first.sample(i)[0]) for i in range(len(first)))

    no_child()
    second = tokenise(data, plain_model, seq_len=4, loss_on="all", vocab_size=320)
    assert second.path == first.path
    for i in range(len(first)):
        assert np.array_equal(first.sample(i)[0], second.sample(i)[0])


def test_the_key_holds_all_that_the_ids_depend_on(chat_model, chat, write, cache, no_child):
    data = write([chat("hello", "yes"), chat("hello", "no")])
    options = {"seq_len": 8, "loss_on": "all", "max_samples": 0}
    tokenise(data, chat_model, **options)
    no_child()
    tokenise(data, chat_model, **options)
    for change in ({"seq_len": 9}, {"loss_on": "completion"}, {"max_samples": 1}, {"chat_template": "chatml"}):
        with pytest.raises(AssertionError, match="a child was started"):
            tokenise(data, chat_model, **{**options, **change})
    copied = shutil.copy(data, data.with_name("same-content.jsonl"))
    tokenise(copied, chat_model, **options)
    for name, content in (
        ("chat_template.jinja", "x"),
        ("config.json", '{"eos_token_id": 0}'),
        ("tokenizer_config.json", "{}"),
        ("special_tokens_map.json", "{}"),
        ("additional_chat_templates/tool_use.jinja", "x"),
    ):
        model = shutil.copytree(chat_model, chat_model.with_name(f"with-{name.replace('/', '-')}"))
        tokenise(data, model, **options)
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(content)
        with pytest.raises(AssertionError, match="a child was started"):
            tokenise(data, model, **options)
    data.write_text(data.read_text() + "\n")
    with pytest.raises(AssertionError, match="a child was started"):
        tokenise(data, chat_model, **options)


def test_truncation_and_masks_reach_the_token_set(chat_model, write, chat):
    data = write([chat("hello", "the answer is forty two"), chat("hello " * 30, "yes"), chat("q", "a")])
    tokens = tokenise(data, chat_model, seq_len=24, loss_on="completion")
    assert (tokens.rows, tokens.skipped, tokens.truncated, len(tokens)) == (3, 1, 2, 2)
    assert [tokens.line(i) for i in range(2)] == [1, 3]
    for i in range(2):
        ids, mask = tokens.sample(i)
        assert len(ids) == len(mask) <= 25 and mask[0] == 0 and 0 < mask.sum() < len(ids)


def test_max_samples_reads_no_further_than_needed(plain_model, write):
    data = write([*TEXTS, "broken"])
    assert len(tokenise(data, plain_model, seq_len=64, loss_on="all", max_samples=2)) == 2
    with pytest.raises(DataError, match="line 3"):
        tokenise(data, plain_model, seq_len=64, loss_on="all")


# Errors from the child


def test_errors_of_the_child_arrive_as_they_are(plain_model, make_model, write, cache):
    good = '{"text": "fine"}'
    data = write([good] * 6 + ["{broken"])
    with pytest.raises(DataError) as caught:
        tokenise(data, plain_model, seq_len=8, loss_on="all")
    assert str(caught.value).startswith(f"{data}, line 7: broken JSON at column 2")

    data = write([good])
    with pytest.raises(UsageError, match="loss_on=completion needs rows with a completion"):
        tokenise(data, plain_model, seq_len=8, loss_on="completion")

    unsafe = make_model("{{ ''.__class__.__mro__ }}", name="unsafe-ä")
    chat_data = write([[{"role": "user", "content": "x"}]])
    with pytest.raises(CheckpointError, match=r"unsafe-ä was stopped.*__class__"):
        tokenise(chat_data, unsafe, seq_len=8, loss_on="all")

    (plain_model / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
        tokenise(data, plain_model, seq_len=8, loss_on="all")
    assert not entries(cache) and not leftovers(cache)


def test_a_child_that_dies_is_reported_with_its_last_words(plain_model, write, monkeypatch, cache):
    script = "import sys; print('noise'); print('out of memory, sorry', file=sys.stderr); sys.exit(9)"
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _args, **kw: real([sys.executable, "-c", script], **kw))
    with pytest.raises(MespError, match=r"data\.jsonl failed.*exit code 9.*out of memory, sorry"):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")
    assert not leftovers(cache)
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(MespError, match=r"data\.jsonl failed.*SIGKILL"):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")


# Progress, and cancelling


class Cancelled(Exception):
    pass


@pytest.fixture
def slow_child(monkeypatch):
    """Children that never come to an end; their processes, as they are started."""
    real, started = subprocess.Popen, []

    def start(_args, **options):
        started.append(real([sys.executable, "-c", "import time; time.sleep(1000)"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def test_progress_is_told_from_the_callers_thread(plain_model, write):
    told = []
    data = write(TEXTS)
    tokenise(
        data,
        plain_model,
        seq_len=8,
        loss_on="all",
        on_progress=lambda *report: told.append((*report, threading.current_thread())),
    )
    assert told and set(told) == {("Tokenising data.jsonl", 0.0, threading.current_thread())}
    told.clear()
    tokenise(data, plain_model, seq_len=8, loss_on="all", on_progress=lambda *report: told.append(report))
    assert told == []  # nothing was to be done


def test_reading_a_large_file_tells_how_far_it_is_and_can_be_cancelled(plain_model, tmp_path, cache, no_child):
    no_child()
    large, told = tmp_path / "large.jsonl", []
    with large.open("wb") as file:
        file.truncate(8 << 30)  # sparse: takes no room

    def on_progress(message, fraction):
        told.append((message, fraction, time.monotonic()))
        if len(told) == 3:
            raise InterruptedError  # not to be taken for one of the file's

    with pytest.raises(InterruptedError):
        tokenise(large, plain_model, seq_len=8, loss_on="all", on_progress=on_progress)
    messages, fractions, times = zip(*told, strict=True)
    assert set(messages) == {"Reading large.jsonl"}
    assert 0 < fractions[0] < fractions[1] < fractions[2] < 1
    assert all(0.1 <= b - a < 30 for a, b in pairwise(times))


def test_cancelling_ends_the_child_and_leaves_nothing(plain_model, write, cache, slow_child):
    calls = []

    def on_progress(message, fraction):
        calls.append(time.monotonic())
        if len(calls) == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all", on_progress=on_progress)
    assert time.monotonic() - calls[-1] < 5
    assert 0.3 < calls[-1] - calls[0] < 5  # about every 0.1 s
    assert [child.poll() for child in slow_child] == [-signal.SIGKILL]
    assert not entries(cache) and not leftovers(cache)


def test_cancelling_at_once(plain_model, write, cache, slow_child):
    def on_progress(message, fraction):
        raise Cancelled

    with pytest.raises(Cancelled):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all", on_progress=on_progress)
    assert [child.poll() for child in slow_child] == [-signal.SIGKILL]
    assert not leftovers(cache)


def test_after_a_cancelled_one_it_is_made(plain_model, write, monkeypatch, cache):
    def on_progress(message, fraction):
        raise Cancelled

    data = write(TEXTS)
    with pytest.raises(Cancelled):
        tokenise(data, plain_model, seq_len=8, loss_on="all", on_progress=on_progress)
    assert len(tokenise(data, plain_model, seq_len=8, loss_on="all")) > 0


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {}, "0 read, 0 skipped.*empty"),
        ([{"text": ""}, {"text": ""}], {}, "2 rows read, 2 skipped.*two tokens"),
        (
            [{"prompt": "hello " * 50, "completion": "x"}] * 3,
            {"loss_on": "completion"},
            "3 rows read, 3 skipped.*prompts are longer than seq_len 16: raise seq_len",
        ),
        (
            [[{"role": "user", "content": "x"}]],
            {"loss_on": "completion"},
            "1 skipped.*no row has an assistant.*loss_on=all",
        ),
    ],
)
def test_nothing_left_to_learn_from(chat_model, write, rows, options, words):
    data = write(rows)
    with pytest.raises(DataError, match=words) as caught:
        tokenise(data, chat_model, **{"seq_len": 16, "loss_on": "all", **options})
    assert str(caught.value).startswith(str(data))


def test_ids_beyond_the_vocabulary(plain_model, write):
    data = write([{"tokens": [1, 2, 3]}, {"tokens": [4, 500, 6]}])
    tokenise(data, plain_model, seq_len=8, loss_on="all", vocab_size=501)
    with pytest.raises(DataError, match=r"line 2: token id 500 .*0 to 499 \(vocab_size 500\)"):
        tokenise(data, plain_model, seq_len=8, loss_on="all", vocab_size=500)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json gives token id .* belongs to another model"):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all", vocab_size=10)


def test_wrong_options_and_files_are_usage_errors(plain_model, write, tmp_path):
    data = write(TEXTS)
    for options, words in (
        ({"seq_len": 0}, "seq_len is 0"),
        ({"loss_on": "prompt"}, "all, completion"),
        ({"max_samples": -1}, "max_samples is -1"),
    ):
        with pytest.raises(UsageError, match=words):
            tokenise(data, plain_model, **{"seq_len": 8, "loss_on": "all", **options})
    with pytest.raises(UsageError, match="does not exist; check the path"):
        tokenise(tmp_path / "none.jsonl", plain_model, seq_len=8, loss_on="all")
    for name in ("n" * 300, "a\0b"):
        with pytest.raises(UsageError, match="does not exist; check the path"):
            tokenise(tmp_path / name, plain_model, seq_len=8, loss_on="all")
    with pytest.raises(UsageError, match="is a folder"):
        tokenise(tmp_path, plain_model, seq_len=8, loss_on="all")


def test_the_caller_loads_neither_tokenizers_nor_jinja():
    script = (
        "import sys, mesp_core.data.tokenise, mesp_core.data.batches, mesp_core.data.wikitext2, mesp_core.data.preview\n"
        "heavy = {'tokenizers', 'jinja2', 'mlx', 'transformers', 'huggingface_hub', 'PySide6'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
