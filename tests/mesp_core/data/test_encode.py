import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from mesp_core.data.encode import Encoder
from mesp_core.data.rows import read_rows
from mesp_core.data.template_choice import CHATML
from mesp_core.data.tokenizer import describe
from mesp_core.errors import CheckpointError, DataError, UsageError

END = 2  # <|im_end|>
CONTENTS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def load_tokenizer(model):
    return describe(model).load()


@pytest.fixture
def encode(write):
    """encode(model, rows, seq_len=64, loss_on="all") -> the samples."""

    def run(model, rows, seq_len=64, loss_on="all"):
        path = write(rows)
        return list(Encoder(model, path, seq_len, loss_on).samples(read_rows(path)))

    return run


def learnt(model, sample):
    """The text of what is to be predicted."""
    tokenizer = load_tokenizer(model)
    return tokenizer.decode([int(i) for i in sample.ids[sample.mask == 1]], skip_special_tokens=False)


def add_beginning(model, trim_offsets=None):
    """Give the tokenizer a post-processor that puts <|endoftext|> (id 0) first."""
    path = model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    template = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    if trim_offsets is None:
        tokenizer.post_processor = template
    else:
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=trim_offsets), template])
    tokenizer.save(str(path))


# Text


def test_text_ends_with_the_end_of_text_token(plain_model, encode):
    (sample,) = encode(plain_model, [{"text": "hello world"}])
    assert list(sample.ids) == [*load_tokenizer(plain_model).encode("hello world").ids, END]
    assert list(sample.mask) == [0] + [1] * (len(sample.ids) - 1)


def test_the_end_is_not_written_twice(plain_model, encode):
    (sample,) = encode(plain_model, [{"text": "hello<|im_end|>"}])
    assert list(sample.ids).count(END) == 1


def test_the_beginning_the_tokenizer_adds_is_kept(plain_model, encode):
    add_beginning(plain_model)
    (sample,) = encode(plain_model, [{"text": "hello"}])
    assert sample.ids[0] == 0 and sample.ids[-1] == END


ADDED = {"__type": "AddedToken", "content": "<|endoftext|>", "special": True}


@pytest.mark.parametrize(
    ("config", "files", "end"),
    [
        ({"eos_token": "<|endoftext|>"}, {}, 0),
        ({"eos_token": ADDED}, {"config.json": {"eos_token_id": 2}}, 0),
        ({"eos_token": "<not in the vocabulary>"}, {"config.json": {"eos_token_id": 1}}, 320),  # added, as transformers does
        ({}, {"special_tokens_map.json": {"eos_token": "<|endoftext|>"}}, 0),  # it goes first
        ({"eos_token": None}, {"config.json": {"eos_token_id": 1}, "generation_config.json": {"eos_token_id": 2}}, 1),
        ({"eos_token": None}, {"config.json": {}, "generation_config.json": {"eos_token_id": [2, 0]}}, 2),
        ({"eos_token": None}, {}, None),
    ],
)
def test_where_the_end_of_text_token_is_looked_up(make_model, encode, config, files, end):
    model = make_model(**config)
    for name, content in files.items():
        (model / name).write_text(json.dumps(content))
    (sample,) = encode(model, [{"text": "hello"}])
    plain = load_tokenizer(model).encode("hello").ids
    assert list(sample.ids) == (plain if end is None else [*plain, end])


def test_end_of_text_id_of_a_wrong_type(make_model, encode):
    model = make_model(eos_token=None)
    (model / "config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(CheckpointError, match=r"config\.json: \"eos_token_id\" is 'two'"):
        encode(model, [{"text": "hello"}])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(0, 40), seq_len=st.integers(1, 12))
def test_windows_predict_every_token_exactly_once(plain_model, encode, count, seq_len):
    ids = list(range(100, 100 + count))
    samples = encode(plain_model, [{"tokens": ids}], seq_len=seq_len)
    assert all(len(sample.ids) <= seq_len + 1 for sample in samples)
    predicted = [int(i) for sample in samples for i in sample.ids[1:]]
    assert predicted == ids[1:]
    assert all(sample.mask[0] == 0 and sample.mask[1:].all() for sample in samples if len(sample.ids))
    assert all(sample.learnable for sample in samples) == (count > 1)
    # Each window but the first begins with the last id of the one before.
    for before, after in pairwise(samples):
        assert before.ids[-1] == after.ids[0]


def test_tokens_are_taken_as_they_are(plain_model, encode):
    (sample,) = encode(plain_model, [{"tokens": [7, 300, 7]}])
    assert list(sample.ids) == [7, 300, 7]


def test_special_tokens_in_a_text_are_split_where_the_model_asks_for_it(make_model, encode):
    """tokenizer.json cannot say it, so a description must."""
    (one,) = encode(make_model(), [{"text": "<|im_start|>"}])
    assert list(one.ids) == [1, END]
    (split,) = encode(make_model(split_special_tokens=True, name="split"), [{"text": "<|im_start|>"}])
    assert len(split.ids) > 4 and 1 not in split.ids


# Chat


def test_chat_is_rendered_and_truncated(chat_model, encode, chat):
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nthe answer<|im_end|>\n"
    full = load_tokenizer(chat_model).encode(text, add_special_tokens=False).ids
    for limit in (64, len(full), len(full) - 1, len(full) - 2, 3):
        (sample,) = encode(chat_model, [chat("hello", "the answer")], seq_len=limit)
        assert list(sample.ids) == full[: limit + 1]
        assert list(sample.mask) == [0] + [1] * (len(sample.ids) - 1)
        assert sample.truncated == (len(full) > limit + 1)


def test_no_beginning_is_added_to_a_rendered_chat(chat_model, encode, chat):
    add_beginning(chat_model)
    (sample,) = encode(chat_model, [chat("hello", "yes")])
    assert sample.ids[0] == 1


@pytest.mark.parametrize(
    "answer", ["hello", "a 👩🏽‍🚀 é e\u0301 न\u093f", "  two spaces ", "\n\nlines\n", "<|im_start|>", "日本語"]
)
def test_completion_learns_the_answer_and_its_end(chat_model, encode, chat, answer):
    (sample,) = encode(chat_model, [chat("what is é 🚀 e\u0301?", answer)], 256, "completion")
    assert learnt(chat_model, sample) == answer + "<|im_end|>\n"


def test_completion_learns_every_answer_of_a_conversation(chat_model, encode, chat):
    (sample,) = encode(chat_model, [{"messages": chat("q", "one", "q", "two")}], 256, "completion")
    assert learnt(chat_model, sample) == "one<|im_end|>\ntwo<|im_end|>\n"


def test_completion_of_a_truncated_chat(chat_model, encode, chat):
    rows = [chat("hello", "the answer is forty two"), chat("hello " * 30, "yes")]
    short, nothing = encode(chat_model, rows, 16, "completion")
    assert short.truncated and "the answer is forty two".startswith(learnt(chat_model, short))
    assert short.learnable and not nothing.learnable


def test_prompt_and_completion_go_through_the_template(chat_model, encode, chat):
    (row,) = encode(chat_model, [{"prompt": "hello", "completion": "yes"}], 64, "completion")
    (same,) = encode(chat_model, [chat("hello", "yes")], 64, "completion")
    assert list(row.ids) == list(same.ids) and list(row.mask) == list(same.mask)


@pytest.fixture
def contents_model(make_model):
    """A model whose chats are their contents and nothing between."""
    return make_model(CONTENTS, name="contents")


def test_a_token_that_straddles_the_boundary_is_not_learnt(contents_model, encode):
    """The tokenizer joins the prompt's last space and the first word into one token, which starts in the prompt."""
    tokens = load_tokenizer(contents_model).encode("hello the answer").tokens
    assert "Ġthe" in tokens
    (sample,) = encode(contents_model, [{"prompt": "hello ", "completion": "the answer"}], loss_on="completion")
    assert learnt(contents_model, sample) == " answer"


@pytest.mark.parametrize("trim", [True, False])
def test_tokenizers_that_trim_offsets_give_the_same_mask(contents_model, encode, trim):
    """With trimmed offsets a space seems to have no characters and a word to start after its space."""
    add_beginning(contents_model, trim_offsets=trim)
    for prompt, completion in (("hello", " the answer"), ("hello\n", "the answer"), ("hello\n\n", "  \n the\n")):
        (sample,) = encode(contents_model, [{"prompt": prompt, "completion": completion}], loss_on="completion")
        assert learnt(contents_model, sample) == completion


# Without a template


@pytest.mark.parametrize("row", [{"prompt": "q", "completion": "a"}, {"messages": [{"role": "user", "content": "q"}]}])
def test_a_chat_for_a_model_without_a_template_is_refused_with_the_way_out(plain_model, encode, row):
    with pytest.raises(DataError, match=r"data\.jsonl, line 1: .*no chat template.*--chat-template FILE.* chatml"):
        encode(plain_model, [row])


def test_a_template_may_be_given(plain_model, chat_model, write, chat):
    path = write([chat("hello", "yes")])
    (given,) = Encoder(plain_model, path, 64, "all", CHATML).samples(read_rows(path))
    (own,) = Encoder(chat_model, path, 64, "all").samples(read_rows(path))
    assert list(given.ids) == list(own.ids)


def test_named_templates(make_model, encode, chat):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    model = make_model(named)
    plain, tools = encode(model, [{"messages": chat("q")}, {"messages": chat("q"), "tools": [{"name": "f"}]}])
    decode = load_tokenizer(model).decode
    assert (decode(plain.ids.tolist()), decode(tools.ids.tolist())) == ("plain", "tools")
    with pytest.raises(DataError, match=r"none of its chat templates \(rag\) is the default"):
        encode(make_model([{"name": "rag", "template": "x"}], name="other"), [chat("q")])


def test_what_a_person_should_know_is_told_once(make_model, plain_model, write):
    path = write([{"text": "a"}, {"text": "b"}])
    endless = Encoder(make_model(eos_token=None), path, 64, "all")
    assert len(list(endless.samples(read_rows(path)))) == 2
    assert [warning[:40] for warning in endless.warnings] == ["The model names no end-of-text token, so"]
    foreign = Encoder(plain_model, path, 64, "all", CHATML.replace("im_start", "im_begin"))
    assert foreign.warnings == []


# Errors


@pytest.mark.parametrize("row", [{"text": "x"}, {"tokens": [1, 2]}])
def test_completion_needs_a_completion(plain_model, encode, row):
    with pytest.raises(UsageError, match=r"loss_on=completion needs .*data\.jsonl has .* rows.*prompt.*messages"):
        encode(plain_model, [row], loss_on="completion")


def test_template_errors_have_file_and_line_and_come_in_order(make_model, write):
    model = make_model("{% if messages[0].content == 'bad' %}{{ raise_exception('No.') }}{% endif %}{{ messages }}")
    good, bad = ([{"role": "user", "content": content}] for content in ("good", "bad"))
    path = write([good, good, bad, "broken"])
    with pytest.raises(DataError) as caught:
        list(Encoder(model, path, 64, "all").samples(read_rows(path)))
    assert str(caught.value).startswith(f"{path}, line 3: the chat template of {model} refuses these messages: No.")


def test_missing_and_broken_tokenizer(plain_model, write):
    path = plain_model / "tokenizer.json"
    for content, words in (("{}", "cannot be loaded"), ("{", "not valid JSON"), (None, "does not exist")):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(CheckpointError, match=words) as caught:
            load_tokenizer(plain_model)
        assert str(path) in str(caught.value)


def test_truncation_and_padding_of_the_tokenizer_are_ignored(plain_model, encode):
    path = plain_model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(path))
    long, short = encode(plain_model, [{"text": "the quick brown fox jumps"}, {"text": "a"}])
    assert len(long.ids) > 5 and len(short.ids) == 2


# Against the real thing


def test_ids_and_mask_as_transformers_on_smollm2(smollm2, encode, chat):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    answer = "Hi 👩🏽‍🚀! Zoe\u0308 says 3 < 14."
    messages = chat("Hello", answer)
    (sample,) = encode(smollm2, [messages], 256, "completion")
    text = theirs.apply_chat_template(messages, tokenize=False)
    assert list(sample.ids) == theirs(text, add_special_tokens=False)["input_ids"]
    prompt = theirs.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    length = len(theirs(prompt, add_special_tokens=False)["input_ids"])
    assert np.array_equal(np.flatnonzero(sample.mask), np.arange(length, len(sample.ids)))
    assert learnt(smollm2, sample) == answer + "<|im_end|>\n"
