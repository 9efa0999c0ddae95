"""Reading a .jsonl file, one row at a time, in any of the five accepted formats."""

import errno
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mesp_core.errors import DataError, UsageError

Kind = Literal["chat", "completion", "text", "tokens"]
Message = dict[str, Any]
Tool = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
MAX_TOKEN_ID = 2**31 - 1

# The five formats, by the name messages use for them.
CHAT_LIST = 'a list of {"role", "content"}'
CHAT_OBJECT = '{"messages": [...]}'
COMPLETION = '{"prompt", "completion"}'
TEXT = '{"text"}'
TOKENS = '{"tokens": [ids]}'
# Keys that would change what is learnt, and that nothing here heeds: a row with one is refused, unless it is null or empty.
# Others (an id, a source, a score) only say something about the row.
UNHEEDED = {
    "mask": "which tokens carry loss",
    "loss_mask": "which tokens carry loss",
    "labels": "what is to be predicted",
    "attention_mask": "which tokens are seen",
    "position_ids": "where tokens stand",
    "weight": "how much the row counts",
    "weights": "how much the parts of the row count",
    "functions": 'what may be called, in an older form of "tools"',
    "documents": "what the answer draws on",
    "chat_template_kwargs": "how the template writes the chat",
    "images": "pictures",
    "image": "a picture",
    "videos": "films",
    "video": "a film",
    "audio": "sound",
    "audios": "sound",
}
# The same in a message.
UNHEEDED_IN_MESSAGES = {"weight": "whether the message is learnt", "train": "whether the message is learnt"}

# How files begin that hold rows in another form.
OTHER_FILES = {
    b"\x1f\x8b": ("compressed with gzip", "unpack it first (gunzip -k FILE), or pass <(gunzip -c FILE)"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first (zstd -d FILE), or pass <(zstd -dc FILE)"),
    b"\xfd7zXZ\x00": ("compressed with xz", "unpack it first (xz -dk FILE), or pass <(xz -dc FILE)"),
    b"BZh": ("compressed with bzip2", "unpack it first (bunzip2 -k FILE), or pass <(bunzip2 -c FILE)"),
    b"PK\x03\x04": ("a zip archive", "unpack it and name a .jsonl file in it"),
    b"PAR1": ("a Parquet file", "convert it to .jsonl first, one JSON value a line"),
    b"\xff\xfe": ("UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "save it as UTF-8"),
}

ANY_FORMAT = f"{CHAT_LIST}, {CHAT_OBJECT}, {COMPLETION}, {TEXT} or {TOKENS}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a data file.

    `line` counts from 1. `kind` says which field is filled: "chat" and "completion" fill `messages` (a completion is a
    user message followed by an assistant message) and perhaps `tools`, "text" fills `text`, "tokens" fills `tokens`.
    """

    line: int
    kind: Kind
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] | None = None
    text: str = ""
    tokens: tuple[int, ...] = ()


class _Problem(Exception):
    """What is wrong with a row and what was expected; the reader adds file and line."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"{found}; expected {expected}.")


def read_rows(path: Path, only: Collection[int] | None = None, source: Iterable[bytes] | None = None) -> Iterator[Row]:
    """Yield the rows of `path`, which is never held in memory as a whole; with `only`, those on these lines.

    `source` gives the file's lines where somebody has opened it already.

    The first non-blank line sets the format of the file. A byte order mark, CRLF, blank lines and a missing final
    newline are accepted. Of lines that are not asked for, the first is looked at for the format and no other.

    Raises:
        UsageError: the file is missing, a folder, or may not be read.
        DataError: the first row that cannot be used, with file, line, what was found and what was expected.
    """
    path = Path(path)
    form: str | None = None
    form_line = 0
    last = None if only is None else max(only, default=0)
    for line, raw in _lines(path, source):
        if last is not None and line > last:
            return
        wanted = only is None or line in only
        if form is not None and not wanted:
            continue
        try:
            value = _parse(raw)
            if form is None:
                form, form_line = _format_of(value), line
            elif (here := _format_of(value, prefer=form)) != form:
                raise _Problem(f"{here}", f"{form}, the format of line {form_line}: a file has one format")
            if isinstance(value, dict):
                _refuse_unheeded(value, UNHEEDED)
            row = _ROW_OF[form](line, value) if wanted else None
        except _Problem as problem:
            raise DataError(f"{path}, line {line}: {problem}") from None
        if row is not None:
            yield row


def unreadable(data: Path, error: OSError | ValueError) -> UsageError:
    """What to tell about a data file that could not be opened or read."""
    # A name that is too long, or has a character that no name can have, names nothing.
    if isinstance(error, (FileNotFoundError, ValueError)) or error.errno == errno.ENAMETOOLONG:
        return UsageError(f"The data file {data} does not exist; check the path.")
    if isinstance(error, IsADirectoryError):
        return UsageError(f"The data file {data} is a folder; name a .jsonl file in it.")
    return UsageError(f"The data file {data} cannot be read: {error.strerror or error}.")


def _lines(path: Path, source: Iterable[bytes] | None) -> Iterator[tuple[int, bytes]]:
    """The non-blank lines as bytes with their numbers, without line ends or byte order mark."""
    try:
        with path.open("rb") if source is None else nullcontext(source) as file:
            for line, raw in enumerate(file, 1):
                if line == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                    _refuse_other_files(path, raw)
                raw = raw.strip()
                if raw:
                    yield line, raw
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _refuse_other_files(path: Path, first: bytes) -> None:
    for magic, (what, way_out) in OTHER_FILES.items():
        if first.startswith(magic):
            raise DataError(f"{path} is {what}, not lines of JSON: {way_out.replace('FILE', path.name)}.")


def _parse(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Problem(f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not valid UTF-8", "UTF-8 text") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        found = f"broken JSON at column {error.colno} ({error.msg})"
        expected = "one complete JSON value on each line"
        if not text.startswith(("{", "[")):
            expected += f", not CSV or plain text; a row is like {ANY_FORMAT}"
        elif text == "[":
            expected += "; this looks like one JSON array over several lines: write each of its items as one line"
        raise _Problem(found, expected) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of nested brackets
        raise _Problem(f"JSON that cannot be read ({error})", f"a row like {ANY_FORMAT}") from None
    if "\\u" in text:
        # Only an escape can smuggle half of a surrogate pair into valid UTF-8; no tokenizer can encode it.
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"a lone surrogate (\\u{ord(error.object[error.start]):04x})"
            raise _Problem(found, "whole characters: both halves of a surrogate pair") from None
    return value


def _format_of(value: Any, prefer: str | None = None) -> str:
    """The format of a row; of several that fit, `prefer`, else the first in the order of the list of formats."""
    if isinstance(value, list):
        return CHAT_LIST
    if not isinstance(value, dict):
        raise _Problem(_describe(value), f"a row like {ANY_FORMAT}")
    keys = value.keys()
    needs = {CHAT_OBJECT: {"messages"}, COMPLETION: {"prompt", "completion"}, TEXT: {"text"}, TOKENS: {"tokens"}}
    fitting = [name for name, needed in needs.items() if needed <= keys]
    if not fitting:
        names = ", ".join(f'"{key}"' for key in list(keys)[:6]) or "no fields"
        raise _Problem(f"an object with {names}", f"a row like {ANY_FORMAT}")
    # As in mlx-lm, a text beside a chat is the same once more.
    if len(fitting) > 1 and fitting not in ([CHAT_OBJECT, TEXT], [COMPLETION, TEXT]):
        raise _Problem(f"a row that is both {fitting[0]} and {fitting[1]}", "one of them")
    return prefer if prefer in fitting else fitting[0]


def _refuse_unheeded(row: dict[str, Any], unheeded: dict[str, str], where: str = "") -> None:
    for key, meaning in unheeded.items():
        if row.get(key) not in (None, [], {}, ""):
            raise _Problem(f'"{key}"{where}, which says {meaning} and is not supported', "a row without it")


def _tools(value: dict[str, Any]) -> tuple[Tool, ...] | None:
    tools = value.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _Problem(f'"tools" is {_describe(tools)}', "a list of objects, each a tool's JSON schema")
    return tuple(tools)


def _chat_row(line: int, messages: Any, tools: tuple[Tool, ...] | None = None) -> Row:
    if not isinstance(messages, list):
        raise _Problem(f'"messages" is {_describe(messages)}', 'a list of {"role", "content"}')
    if not messages:
        raise _Problem("no messages", "at least one message")
    for number, message in enumerate(messages, 1):
        where = f"message {number}"
        if not isinstance(message, dict):
            raise _Problem(f"{where} is {_describe(message)}", 'an object with "role" and "content"')
        calls = bool(message.get("tool_calls"))
        for field in ("role", "content"):
            if field not in message and not (field == "content" and calls):
                raise _Problem(f'{where} has no "{field}"', 'an object with "role" and "content"')
        role = message["role"]
        if not isinstance(role, str) or role not in ROLES:
            raise _Problem(f"{where} has the role {_describe(role)}", f"one of {', '.join(ROLES)}")
        if not (calls and message.get("content") is None):
            _check_string(message["content"], f'"content" of {where}')
        _refuse_unheeded({**message, "weight": _not_one(message.get("weight"))}, UNHEEDED_IN_MESSAGES, f" in {where}")
    return Row(line, "chat", messages=tuple(messages), tools=tools)


def _not_one(weight: Any) -> Any:
    """A weight of 1 is what every message has."""
    return None if weight == 1 else weight


def _completion_row(line: int, value: dict[str, Any]) -> Row:
    for field in ("prompt", "completion"):
        _check_string(value[field], f'"{field}"')
    user = {"role": "user", "content": value["prompt"]}
    assistant = {"role": "assistant", "content": value["completion"]}
    return Row(line, "completion", messages=(user, assistant), tools=_tools(value))


def _text_row(line: int, value: dict[str, Any]) -> Row:
    _check_string(value["text"], '"text"')
    return Row(line, "text", text=value["text"])


def _tokens_row(line: int, value: dict[str, Any]) -> Row:
    ids = value["tokens"]
    if not isinstance(ids, list):
        raise _Problem(f'"tokens" is {_describe(ids)}', "a list of token ids")
    for number, token in enumerate(ids, 1):
        # type(), not isinstance(): true and false are ints to Python.
        if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
            raise _Problem(f"token {number} is {_describe(token)}", "whole numbers from 0 to the vocabulary size")
    return Row(line, "tokens", tokens=tuple(ids))


_ROW_OF = {
    CHAT_LIST: _chat_row,
    CHAT_OBJECT: lambda line, value: _chat_row(line, value["messages"], _tools(value)),
    COMPLETION: _completion_row,
    TEXT: _text_row,
    TOKENS: _tokens_row,
}


def _check_string(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise _Problem(f"{what} is {_describe(value)}", "a string")


def _describe(value: Any) -> str:
    """A value in a person's words, short enough for one line."""
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 40 else shown[:37] + "..."
