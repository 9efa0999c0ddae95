import json

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


def test_utf16_is_invalid_utf8(write):
    with pytest.raises(DataError, match=r"line 1: byte 1 .*UTF-8"):
        list(read_rows(write('{"text": "a"}'.encode("utf-16"))))


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
