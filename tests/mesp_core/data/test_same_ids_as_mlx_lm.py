"""Ids and labels are those that mlx-lm has for the same rows, on tokenizers of every layout and chats of every kind.

The judge is mlx-lm's own: its data sets over the tokenizer that it loads.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from mlx_lm.tokenizer_utils import load
from mlx_lm.tuner.datasets import ChatDataset, CompletionsDataset, TextDataset

from mesp_core.data.encode import Encoder
from mesp_core.data.rows import read_rows
from mesp_core.data.tokenise import description_file, tokenise
from mesp_core.errors import MespError
from mesp_core.files.bundled import bundled_path
from tests.mesp_core.data.tokenizer_layouts import CHATML, LAYOUTS, write_layout

LONG = 100_000  # tokens: nothing is cut


def u(content):
    return {"role": "user", "content": content}


def a(content, **more):
    return {"role": "assistant", "content": content, **more}


def s(content):
    return {"role": "system", "content": content}


TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Wetter <heute> & morgen", "parameters": {"type": "object"}},
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Ålesund"}}}
ANSWER = {"role": "tool", "name": "weather", "content": '{"rain": true}'}
CHATS = {
    "one turn": {"messages": [u("hello"), a("the answer is forty two.")]},
    "system": {"messages": [s("Be brief."), u("hello"), a("yes")]},
    "several turns": {"messages": [u("one"), a("two"), u("three"), a("four"), u("five"), a("six")]},
    "system and turns": {"messages": [s("You are a dog."), u("sit"), a("woof"), u("stay"), a("no.")]},
    "ends with a question": {"messages": [u("one"), a("two"), u("three")]},
    "only a question": {"messages": [u("is anybody there?")]},
    "tools": {"messages": [u("rain?"), a("Which place?")], "tools": [TOOL]},
    "tools are null": {"messages": [u("rain?"), a("Which place?")], "tools": None},
    "no tools": {"messages": [u("rain?"), a("Which place?")], "tools": []},
    "a tool is called": {"messages": [u("rain?"), a("", tool_calls=[CALL]), ANSWER, a("Yes.")], "tools": [TOOL]},
    "called, content null": {"messages": [u("rain?"), a(None, tool_calls=[CALL]), ANSWER, a("Yes.")], "tools": [TOOL]},
    "called, no content": {
        "messages": [u("rain?"), {"role": "assistant", "tool_calls": [CALL]}, ANSWER, a("Yes.")],
        "tools": [TOOL, TOOL],
    },
    "empty answer": {"messages": [u("say nothing"), a("")]},
    "empty question": {"messages": [u(""), a("what?")]},
    "unicode": {"messages": [u("naïve café e\u0301 ﬁ Ⅷ ½"), a("Zoë, Å A\u030a, ﬃ ™")]},
    "emoji": {"messages": [u("🙂"), a("👩🏽‍🚀🚀 und 👨‍👩‍👧")]},
    "other scripts": {"messages": [u("日本語で"), a("はい、한국어 العربية हिन्दी ไทย")]},
    "digits": {"messages": [u("1234567 + 89"), a("1234656, 3.14159, 2024-12-31, ١٢٣")]},
    "leading and trailing spaces": {"messages": [u("  two  spaces "), a("  the answer  ")]},
    "line ends": {"messages": [u("a\r\nb\n\n\nc"), a("\n\nlines\r\n\r\n")]},
    "tabs and odd spaces": {"messages": [u("\ta\u00a0b\u3000c\u200b"), a("x\t\ty \u2028z")]},
    "code": {"messages": [u("write f"), a("```python\ndef f(x):\n    return x + 1  # _private__\n```\n")]},
    "very long": {"messages": [u("the quick brown fox " * 300), a("jumps over the lazy dog. " * 300)]},
    "special tokens as text": {"messages": [u("<|im_start|>user </s> <bos> [INST]"), a("<|im_end|> <s> <sep>[MASK]x")]},
    "template as text": {"messages": [u("{{ bos_token }} {% if x %}"), a("{# no #} {{ messages }}")]},
    "the same twice": {"messages": [u("same"), a("same"), u("same"), a("same")]},
    "reasoning": {"messages": [u("think"), a("done", reasoning_content="first this, then that")]},
    "reasoning by its older name": {"messages": [u("think"), a("done", reasoning="because")]},
    "names": {"messages": [{**u("hi"), "name": "Ann"}, a("hello Ann", name=None)]},
    "an answer first": {"messages": [a("May I help?"), u("yes"), a("how?")]},
    "html": {"messages": [u("<b>a & b</b> 'q' \"p\""), a("&lt;i&gt; it's")]},
}
TEXTS = ["hello world", "  spaces ", "the answer\nis é 🙂 1234", "<|im_end|>", "x</s>", "one 日本語 two"]
COMPLETIONS = [
    {"prompt": "Q: hello", "completion": "the answer"},
    {"prompt": "1234 é", "completion": " 56 🙂\n"},
    {"prompt": "rain?", "completion": "yes", "tools": [TOOL]},
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """pairs(layout) -> (its folder, mlx-lm's tokenizer), made once."""
    made = {}

    def pair(name):
        if name not in made:
            if name == "tiny":
                folder = bundled_path("tiny")
            elif name == "SmolLM2":
                folder = Path(os.environ.get("MESP_SMOLLM2", ""))
                if not (folder / "tokenizer.json").is_file():
                    pytest.skip("MESP_SMOLLM2 does not name a SmolLM2 checkpoint")
            else:
                folder = write_layout(name, tmp_path_factory.mktemp("layout") / "model")
            made[name] = folder, load(folder)
        return made[name]

    return pair


NAMES = [*LAYOUTS, "tiny", "SmolLM2"]
# What a layout's template refuses or fails on, with transformers as with us.
NO_SYSTEM = ["system", "system and turns"]
NEEDS_CONTENT = ["called, content null", "called, no content"]  # SmolLM2's template takes every message's content
REFUSED = {"gemma, refuses a system message": NO_SYSTEM, "SmolLM2": NEEDS_CONTENT}
# Labels that mlx-lm has not: transformers renders no empty chat, which is what stands before an answer that comes first.
UNJUDGED = ["an answer first"]
# ... of which SmolLM2's template, and the one that looks at the first message, give no span either.
FIRST_ANSWER_REFUSED = ["gemma, refuses a system message", "SmolLM2"]


def answers(messages):
    return [number for number, message in enumerate(messages) if message["role"] == "assistant"]


def their_labels(tokenizer, row):
    """(ids, 1 where an id is learnt) of a chat if mlx-lm learnt every answer as it learns the last one.

    An answer's ids stand between as many as the chat has up to its header, and as many as it has with the answer.
    """
    messages, tools = row["messages"], row.get("tools")
    ids, _ = ChatDataset([row], tokenizer).process(row)
    mask = np.zeros(len(ids), np.uint8)
    for number in answers(messages):
        before = tokenizer.apply_chat_template(messages[:number], tools=tools, add_generation_prompt=True)
        after = tokenizer.apply_chat_template(messages[: number + 1], tools=tools)
        mask[len(before) : len(after)] = 1
    if messages[-1]["role"] == "assistant":
        _, offset = ChatDataset([row], tokenizer, mask_prompt=True).process(row)
        assert offset == len(before)  # the last one's rule is mlx-lm's own
    return ids, mask


def as_theirs(encoder, path, names, theirs):
    """Encode these chats as `theirs(row)`, (ids, mask), or fail where it fails; the names of those that did."""
    refused = []
    for line, (name, row) in enumerate(CHATS.items(), 1):
        if name not in names:
            continue
        [read] = read_rows(path, only=[line])
        try:
            ids, mask = theirs(row)
        except Exception:
            with pytest.raises(MespError):
                list(encoder.samples([read]))
            refused.append(name)
            continue
        [sample] = encoder.samples([read])
        assert sample.ids.tolist() == ids, name
        assert sample.mask.tolist() == list(mask), name
    return refused


@pytest.mark.parametrize("layout", NAMES)
def test_ids_of_chats(pairs, write, layout):
    folder, tokenizer = pairs(layout)
    path = write(list(CHATS.values()))

    def theirs(row):
        ids, _ = ChatDataset([row], tokenizer).process(row)
        return ids, [0] + [1] * (len(ids) - 1)

    assert as_theirs(Encoder(folder, path, LONG, "all"), path, CHATS, theirs) == REFUSED.get(layout, [])


@pytest.mark.parametrize("layout", NAMES)
def test_labels_of_completions(pairs, write, layout):
    folder, tokenizer = pairs(layout)
    path = write(list(CHATS.values()))
    encoder = Encoder(folder, path, LONG, "completion")
    judged = [name for name in CHATS if name not in UNJUDGED]
    assert as_theirs(encoder, path, judged, lambda row: their_labels(tokenizer, row)) == REFUSED.get(layout, [])
    for name in UNJUDGED:
        with pytest.raises(ValueError, match="empty conversation"):
            their_labels(tokenizer, CHATS[name])
        [read] = read_rows(path, only=[list(CHATS).index(name) + 1])
        if layout in FIRST_ANSWER_REFUSED:
            with pytest.raises(MespError, match="message 1 cannot be told from the rest"):
                list(encoder.samples([read]))
        else:
            [sample] = encoder.samples([read])
            assert 0 < sample.mask.sum() < len(sample.ids)


@pytest.mark.parametrize("layout", NAMES)
def test_texts(pairs, write, layout):
    folder, tokenizer = pairs(layout)
    rows = [{"text": text} for text in TEXTS]
    path = write(rows)
    samples = list(Encoder(folder, path, LONG, "all").samples(read_rows(path)))
    expected = [TextDataset(rows, tokenizer).process(row)[0] for row in rows]
    assert [sample.ids.tolist() for sample in samples] == expected


@pytest.mark.parametrize("layout", NAMES)
def test_prompts_and_completions(pairs, write, layout):
    folder, tokenizer = pairs(layout)
    path = write(COMPLETIONS)
    theirs = CompletionsDataset(COMPLETIONS, tokenizer, "prompt", "completion", mask_prompt=True)
    samples = list(Encoder(folder, path, LONG, "completion").samples(read_rows(path)))
    for sample, row in zip(samples, COMPLETIONS, strict=True):
        ids, offset = theirs.process(row)
        assert sample.ids.tolist() == ids
        assert sample.mask.tolist() == [0] * offset + [1] * (len(ids) - offset)


def test_there_are_a_dozen_layouts_and_thirty_chats():
    assert len(LAYOUTS) >= 12 and len(CHATS) >= 30


def test_the_real_child_gives_the_same_ids_and_later_ones_need_no_transformers(pairs, write, monkeypatch, tmp_path):
    """Also where the description is there already: mlx-lm is asked once for each model."""
    folder, tokenizer = pairs("llama2")
    rows = [CHATS["several turns"], CHATS["digits"]]
    path = write(rows)
    expected = [ChatDataset([row], tokenizer).process(row)[0] for row in rows]
    tokens = tokenise(path, folder, seq_len=LONG, loss_on="all")
    assert [tokens.sample(number)[0].tolist() for number in range(2)] == expected
    assert description_file(folder).is_file()
    for package in ("transformers", "mlx_lm"):  # found before the real ones, and not to be had
        (tmp_path / f"{package}.py").write_text("raise ImportError('not again')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    again = tokenise(path, folder, seq_len=LONG - 1, loss_on="all")
    assert [again.sample(number)[0].tolist() for number in range(2)] == expected
    description_file(folder).unlink()
    with pytest.raises(MespError, match="not again"):
        tokenise(path, folder, seq_len=LONG - 2, loss_on="all")


def test_a_model_without_a_template_is_refused_as_by_mlx_lm_and_chatml_is_the_way_out(tmp_path, write):
    folder = write_layout("gpt2, template of its own", tmp_path / "model")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer, row = load(folder), CHATS["system and turns"]
    path = write([row])
    with pytest.raises(ValueError, match="chat_template is not set"):
        ChatDataset([row], tokenizer).process(row)
    with pytest.raises(MespError, match="--chat-template chatml"):
        tokenise(path, folder, seq_len=LONG, loss_on="all")
    tokens = tokenise(path, folder, seq_len=LONG, loss_on="all", chat_template="chatml")
    expected = tokenizer.apply_chat_template(row["messages"], chat_template=CHATML)
    assert tokens.sample(0)[0].tolist() == expected
    assert len(tokens.warnings) == 1 and "<|im_start|>" in tokens.warnings[0]
