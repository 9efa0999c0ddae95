import bz2
import gzip
import json
import lzma

import pytest

from mesp_core.data.rows import read_rows
from mesp_core.errors import DataError, UsageError

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "ä 🚀"}]
ONE_OF_EACH = [
    (CHAT, "chat"),
    ({"messages": CHAT}, "chat"),
    ({"prompt": "p", "completion": "c"}, "completion"),
    ({"text": "t"}, "text"),
    ({"tokens": [0, 5, 2**31 - 1]}, "tokens"),
]


@pytest.mark.parametrize(("value", "kind"), ONE_OF_EACH)
def test_every_format(write, value, kind):
    first, second = read_rows(write([value, value]))
    assert (first.line, second.line) == (1, 2)
    assert first.kind == second.kind == kind
    if kind == "chat":
        assert list(first.messages) == CHAT
    elif kind == "completion":
        assert [(m["role"], m["content"]) for m in first.messages] == [("user", "p"), ("assistant", "c")]
    elif kind == "text":
        assert first.text == "t"
    else:
        assert first.tokens == (0, 5, 2**31 - 1)


def test_tool_role_and_further_fields_are_kept(write):
    message = {"role": "tool", "content": "42", "name": "calculator"}
    (row,) = read_rows(write([{"messages": [message], "source": "mine"}]))
    assert row.messages == (message,)


def test_byte_order_mark_crlf_blank_lines_and_no_final_newline(write):
    rows = list(read_rows(write(b'\xef\xbb\xbf\r\n\r\n{"text": "a"}\r\n   \r\n\n{"text": "b"}')))
    assert [(row.line, row.text) for row in rows] == [(3, "a"), (6, "b")]


def test_empty_file_has_no_rows(write):
    assert list(read_rows(write(b""))) == []
    assert list(read_rows(write(b"\xef\xbb\xbf\n\n"))) == []


def test_rows_before_a_problem_are_read_first(write):
    """Streaming: the file is not parsed as a whole before its first row is handed out."""
    rows = read_rows(write(['{"text": "a"}', "broken"]))
    assert next(rows).text == "a"
    with pytest.raises(DataError, match="line 2"):
        next(rows)


def test_escaped_surrogate_pair_is_a_character(write):
    (row,) = read_rows(write([r'{"text": "\ud83d\ude80"}']))
    assert row.text == "🚀"


GOOD_TEXT = '{"text": "fine"}'
PROBLEMS = [
    ([GOOD_TEXT] * 6 + ['{"text": "cut'], 7, ["broken JSON at column 10", "one complete JSON value"]),
    (["[1, 2]"], 1, ["message 1 is 1", '"role"']),
    (["17"], 1, ["17", '{"text"}', '"prompt"']),
    (["null"], 1, ["null"]),
    (['"a string"'], 1, ['"a string"']),
    (["{}"], 1, ["no fields", '"messages"']),
    (['{"prompt": "p", "answer": "c"}'], 1, ['"prompt", "answer"', '"completion"']),
    (["[]"], 1, ["no messages", "at least one"]),
    (['{"messages": []}'], 1, ["no messages"]),
    (['{"messages": "hi"}'], 1, ['"messages" is "hi"', "a list"]),
    (['[{"role": "user"}]'], 1, ['message 1 has no "content"']),
    (['[{"content": "x"}]'], 1, ['message 1 has no "role"']),
    (
        ['[{"role": "user", "content": "x"}, {"role": "human", "content": "x"}]'],
        1,
        ["message 2", '"human"', "assistant"],
    ),
    (['[{"role": null, "content": "x"}]'], 1, ["role null"]),
    (['[{"role": "user", "content": null}]'], 1, ['"content" of message 1 is null', "a string"]),
    (['[{"role": "user", "content": [{"type": "text"}]}]'], 1, ["is a list", "a string"]),
    (['{"prompt": "p", "completion": 3}'], 1, ['"completion" is 3', "a string"]),
    (['{"text": ["a"]}'], 1, ['"text" is a list', "a string"]),
    (['{"tokens": "1 2"}'], 1, ['"tokens" is "1 2"', "a list of token ids"]),
    (['{"tokens": [1, -2]}'], 1, ["token 2 is -2", "whole numbers from 0"]),
    (['{"tokens": [1.0]}'], 1, ["token 1 is 1.0"]),
    (['{"tokens": [0, 1, true]}'], 1, ["token 3 is true"]),
    (['{"tokens": ["7"]}'], 1, ['token 1 is "7"']),
    (['{"tokens": [2147483648]}'], 1, ["token 1 is 2147483648"]),
    ([GOOD_TEXT, "", '{"tokens": [1]}'], 3, ['{"tokens": [ids]}', 'expected {"text"}', "line 1"]),
    ([json.dumps(CHAT), json.dumps({"messages": CHAT})], 2, ["a list of", "one format"]),
    ([GOOD_TEXT, r'{"text": "\ud800 alone"}'], 2, [r"lone surrogate (\ud800)"]),
    ([r'{"text": "ok", "\udfff": 1}'], 1, [r"lone surrogate (\udfff)"]),
    (["[" * 100_000], 1, ["cannot be read"]),
    (['{"tokens": [' + "9" * 5000 + "]}"], 1, ["cannot be read"]),
]


@pytest.mark.parametrize(("lines", "line", "words"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_a_problem_names_file_line_what_was_found_and_what_was_expected(write, lines, line, words):
    path = write(lines)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert "expected" in message
    assert "\n" not in message and len(message) < 500
    for word in words:
        assert word in message


def test_invalid_utf8_names_line_and_byte(write):
    path = write(b'{"text": "a"}\n{"text": "b\xff"}\n')
    with pytest.raises(DataError, match=r"line 2: byte 12 \(0xff\) is not valid UTF-8"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a"}'.encode("utf-16"), "UTF-16 text, not lines of JSON: save it as UTF-8"),
        (gzip.compress(b'{"text": "a"}', mtime=0), r"compressed with gzip.*gunzip -k data\.jsonl"),
        (lzma.compress(b'{"text": "a"}'), "compressed with xz"),
        (bz2.compress(b'{"text": "a"}'), "compressed with bzip2"),
        (b"PAR1\x15", "a Parquet file"),
        (b"PK\x03\x04", "a zip archive"),
    ],
)
def test_files_in_another_form_are_named_as_what_they_are(write, content, words):
    with pytest.raises(DataError, match=words):
        list(read_rows(write(content)))


def test_tools_and_tool_calls(write):
    tool = {"type": "function", "function": {"name": "f"}}
    call = {"role": "assistant", "content": None, "tool_calls": [tool]}
    rows = [
        {"messages": [{"role": "user", "content": "x"}, call], "tools": [tool]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [tool]}], "tools": None},
    ]
    with_tools, without = read_rows(write(rows))
    assert with_tools.tools == (tool,) and with_tools.messages[1] == call
    assert without.tools is None and "content" not in without.messages[1]
    (row,) = read_rows(write([{"prompt": "p", "completion": "c", "tools": [tool]}]))
    assert row.kind == "completion" and row.tools == (tool,)
    for tools in ("f", [1], {"name": "f"}):
        with pytest.raises(DataError, match=r'"tools" is .*expected a list of objects'):
            list(read_rows(write([{"messages": [{"role": "user", "content": "x"}], "tools": tools}])))


MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "row",
    [
        {"tokens": [1, 2], "mask": [0, 1]},
        {"tokens": [1, 2], "labels": [1, 2]},
        {"messages": MESSAGES, "weight": 0.5},
        {"messages": [MESSAGES[0] | {"weight": 0}]},
        {"messages": MESSAGES, "images": ["a.png"]},
        {"prompt": "p", "completion": "c", "functions": [{"name": "f"}]},
    ],
)
def test_a_key_that_carries_meaning_is_never_ignored(write, row):
    with pytest.raises(DataError, match=r"line 1: \"(mask|labels|weight|images|functions)\".*not supported.*without it"):
        list(read_rows(write([row])))


def test_keys_without_a_meaning_for_training_and_empty_ones_are_let_pass(write):
    rows = [{"messages": MESSAGES, "id": 7, "source": "x", "images": [], "mask": None}, {"messages": MESSAGES, "weight": ""}]
    rows.append({"messages": [MESSAGES[0] | {"weight": 1, "name": "ann"}]})
    assert len(list(read_rows(write(rows)))) == 3


def test_of_two_formats_in_a_row_a_chat_goes_before_its_text_and_others_are_refused(write):
    """As mlx-lm decides, where it decides."""
    (row,) = read_rows(write([{"text": "t", "messages": MESSAGES}]))
    assert row.kind == "chat"
    (row,) = read_rows(write([{"text": "t", "prompt": "p", "completion": "c"}]))
    assert row.kind == "completion"
    (row,) = read_rows(write([{"prompt": "p", "messages": MESSAGES}]))
    assert row.kind == "chat"
    for both in ({"prompt": "p", "completion": "c", "messages": MESSAGES}, {"tokens": [1, 2], "text": "t"}):
        with pytest.raises(DataError, match=r"a row that is both .* and .*expected one of them"):
            list(read_rows(write([both])))


def test_a_row_that_fits_several_formats_follows_the_file(write):
    both = {"text": "t", "prompt": "p", "completion": "c"}
    assert [row.kind for row in read_rows(write([{"text": "t"}, both]))] == ["text", "text"]
    assert [row.kind for row in read_rows(write([both]))] == ["completion"]


def test_missing_file_folder_and_unreadable_file(tmp_path, write):
    with pytest.raises(UsageError, match=r"nothing\.jsonl does not exist"):
        list(read_rows(tmp_path / "nothing.jsonl"))
    with pytest.raises(UsageError, match="is a folder"):
        list(read_rows(tmp_path))
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_rows(write([GOOD_TEXT]) / "below-a-file"))


# Some of the lines


def test_only_the_lines_asked_for(write):
    data = write(["", '{"text": "a"}', "", *(f'{{"text": "{c}"}}' for c in "bcde")])
    assert [(row.line, row.text) for row in read_rows(data, only={4, 6})] == [(4, "b"), (6, "d")]
    assert [row.text for row in read_rows(data, only=range(1, 5))] == ["a", "b"]
    assert list(read_rows(data, only=set())) == [] == list(read_rows(data, only={1, 3, 99}))


def test_lines_not_asked_for_are_not_judged(write):
    rows = ['{"text": "a"}', "broken", '{"tokens": [1]}', '{"text": "d"}', "broken too"]
    assert [row.line for row in read_rows(write(rows), only={4})] == [4]
    with pytest.raises(DataError, match=r"line 3.*the format of line 1"):
        list(read_rows(write(rows), only={3, 4}))
