"""Samples for a person to look at: what is shown is what is learnt, and nothing of the text is lost."""

import signal
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from mesp_core.data.preview import Piece, preview
from mesp_core.data.preview_child import pieces
from mesp_core.data.tokenise import tokenise
from mesp_core.errors import DataError, UsageError
from mesp_core.files.bundled import bundled_path

TINY = bundled_path("tiny")


@pytest.fixture
def show(write):
    """show(rows, model=TINY, first=0, count=100, **options) -> (the token set, the preview)."""

    def make(rows, model=TINY, first=0, count=100, **options):
        data = write(rows)
        tokens = tokenise(data, model, **{"seq_len": 128, "loss_on": "all", **options})
        return tokens, preview(tokens, data, model, first, count)

    return make


@pytest.fixture(scope="module")
def tiny_tokenizer():
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def text_of(sample, learnt=None):
    return "".join(piece.text for piece in sample.pieces if learnt in (None, piece.learnt))


def assert_whole(tokens, samples, tokenizer, first=0):
    """Every sample is that of the token set, and its pieces are runs whose texts join to the decoded ids."""
    for index, sample in enumerate(samples, first):
        ids, mask = tokens.sample(index)
        assert (sample.index, sample.line) == (index, tokens.line(index))
        assert sample.ids == tuple(ids) and sample.learnt == tuple(mask == 1)
        assert all(type(value) is int for value in sample.ids) and all(type(value) is bool for value in sample.learnt)
        assert text_of(sample) == tokenizer.decode(list(sample.ids), skip_special_tokens=False)
        runs = [sample.learnt[0]]
        for learnt in sample.learnt:
            if learnt != runs[-1]:
                runs.append(learnt)
        assert [piece.learnt for piece in sample.pieces] == runs


class TestFormats:
    def test_chat_with_loss_on_the_completion(self, show, chat, tiny_tokenizer):
        rows = [chat("What is this?", "A test."), chat("One", "two", "three", "four 🚀")]
        tokens, samples = show(rows, loss_on="completion")
        assert_whole(tokens, samples, tiny_tokenizer)
        assert [sample.roles for sample in samples] == [("user", "assistant"), ("user", "assistant") * 2]
        assert "What is this?" in text_of(samples[0], learnt=False)
        assert text_of(samples[0], learnt=True).startswith("A test.")
        assert "<|im_end|>" in text_of(samples[0], learnt=True)
        assert [piece.text.strip() for piece in samples[1].pieces if piece.learnt] == ["two<|im_end|>", "four 🚀<|im_end|>"]

    def test_system_messages_and_lines(self, show, chat, tiny_tokenizer):
        rows = ["", {"messages": [{"role": "system", "content": "Be brief."}, *chat("a", "b")]}, "", {"messages": chat("c")}]
        tokens, samples = show(rows)
        assert_whole(tokens, samples, tiny_tokenizer)
        assert [(sample.line, sample.roles) for sample in samples] == [(2, ("system", "user", "assistant")), (4, ("user",))]

    def test_prompt_and_completion(self, show, tiny_tokenizer):
        tokens, samples = show([{"prompt": "hello", "completion": " world"}], loss_on="completion")
        assert_whole(tokens, samples, tiny_tokenizer)
        assert samples[0].roles == ("prompt", "completion")
        assert "world" in text_of(samples[0], learnt=True) and "hello" not in text_of(samples[0], learnt=True)

    def test_text_in_windows(self, show, tiny_tokenizer):
        text = "Round the rugged rock the ragged rascal ran. " * 3
        tokens, samples = show([{"text": text}, {"text": "short"}], seq_len=8)
        assert_whole(tokens, samples, tiny_tokenizer)
        assert len(samples) > 3 and {sample.roles for sample in samples} == {()}
        # The first id of a window is the last one of the window before.
        windows = [sample for sample in samples if sample.line == 1]
        assert windows[0].pieces[0].text + "".join(text_of(sample, learnt=True) for sample in windows) == text + "<|im_end|>"

    def test_tokens(self, show, tiny_tokenizer):
        tokens, samples = show([{"tokens": [1, 40, 50, 60, 2]}])
        assert_whole(tokens, samples, tiny_tokenizer)
        assert samples[0].ids[:5] == (1, 40, 50, 60, 2) and samples[0].roles == ()
        assert samples[0].pieces[0] == Piece("<|im_start|>", False)

    def test_emoji(self, show, tiny_tokenizer):
        text = "🚀🎉 naïve 日本語 👩‍👩‍👧 e\u0301"
        tokens, samples = show([{"text": text}])
        assert_whole(tokens, samples, tiny_tokenizer)
        # As transformers has it for qwen2, whatever tokenizer.json says, a letter and its accent become one.
        assert text_of(samples[0]) == unicodedata.normalize("NFC", text) + "<|im_end|>"


class TestBorders:
    """Where the mask changes inside a character, or in front of a space."""

    def test_a_character_across_the_border_is_whole_and_shown_once(self, tiny_tokenizer):
        ids = np.asarray(tiny_tokenizer.encode("a🚀b").ids)
        for border in range(1, len(ids)):
            mask = (np.arange(len(ids)) >= border).astype(np.uint8)
            first, second = pieces(ids, mask, tiny_tokenizer.decode)
            assert first[0] + second[0] == "a🚀b" and (first[1], second[1]) == (False, True)

    def test_every_border_at_once(self, tiny_tokenizer):
        ids = np.asarray(tiny_tokenizer.encode("日本 x").ids)
        found = pieces(ids, np.arange(len(ids)).astype(np.uint8) % 2, tiny_tokenizer.decode)
        assert len(found) == len(ids) and "".join(text for text, _ in found) == "日本 x"

    def test_a_decoder_that_strips_the_first_space(self):
        """As tokenizers made with sentencepiece have it: every word carries its space, the first one's is not shown."""
        vocabulary = {"▁the": 0, "▁cat": 1, "▁sat": 2, "<0xF0>": 3, "<0x9F>": 4, "<0x9A>": 5, "<0x80>": 6}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        ids = np.asarray([0, 1, 2, 3, 4, 5, 6, 1])
        assert tokenizer.decode([1]) == "cat"
        assert pieces(ids[:4], np.asarray([0, 1, 0, 0], np.uint8), tokenizer.decode)[:2] == [("the", False), (" cat", True)]
        assert pieces(ids, np.asarray([0, 0, 1, 1, 0, 0, 0, 1], np.uint8), tokenizer.decode) == [
            ("the cat", False),
            (" sat", True),
            ("🚀", False),
            (" cat", True),
        ]


class TestPaging:
    ROWS = tuple([{"role": "user", "content": f"number {n}"}] for n in range(7))

    @pytest.mark.parametrize(
        ("first", "count", "shown"),
        [
            (0, 100, range(7)),
            (0, 3, range(3)),
            (3, 3, range(3, 6)),
            (6, 3, range(6, 7)),
            (7, 3, ()),
            (100, 1, ()),
            (2, 0, ()),
        ],
    )
    def test_pages(self, show, tiny_tokenizer, first, count, shown):
        tokens, samples = show(self.ROWS, first=first, count=count)
        assert [sample.index for sample in samples] == list(shown)
        assert_whole(tokens, samples, tiny_tokenizer, first)
        assert all(f"number {sample.index}" in text_of(sample) for sample in samples)

    def test_an_empty_page_starts_no_child(self, show, write, monkeypatch):
        data = write(self.ROWS)
        tokens = tokenise(data, TINY, seq_len=64, loss_on="all")
        monkeypatch.setattr(subprocess, "Popen", lambda *_args, **_options: pytest.fail("a child was started"))
        assert preview(tokens, data, TINY, 7) == []


class TestWhatCanGoWrong:
    @pytest.fixture
    def tokens(self, write, chat):
        data = write([chat("a", "b"), chat("c", "d")])
        return data, tokenise(data, TINY, seq_len=64, loss_on="all")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b'[{"role": "user", "content": "x"}]\n', "data.jsonl has changed since"),
            (b'{"prompt": "x", "completion": "y"}\n' * 2, "data.jsonl has changed since"),
            (b'{"text": "x"}\nbroken\n', "line 2: broken JSON"),
        ],
    )
    def test_a_file_that_has_changed(self, tokens, content, says):
        data, token_set = tokens
        data.write_bytes(content)
        with pytest.raises(DataError, match=says):
            preview(token_set, data, TINY, 0)

    def test_a_file_that_is_gone(self, tokens):
        data, token_set = tokens
        data.unlink()
        with pytest.raises(UsageError, match="does not exist"):
            preview(token_set, data, TINY, 0)

    def test_cancelling_ends_the_child(self, tokens, monkeypatch):
        real, started = subprocess.Popen, []

        def start(_args, **options):
            started.append(real([sys.executable, "-c", "import time; time.sleep(1000)"], **options))
            return started[-1]

        class Cancelled(Exception):
            pass

        told = []

        def on_progress(message, fraction):
            told.append((message, fraction))
            if len(told) == 3:
                raise Cancelled

        monkeypatch.setattr(subprocess, "Popen", start)
        data, token_set = tokens
        with pytest.raises(Cancelled):
            preview(token_set, data, TINY, 0, on_progress=on_progress)
        assert set(told) == {("Reading data.jsonl", 0.0)}
        assert [child.poll() for child in started] == [-signal.SIGKILL]
