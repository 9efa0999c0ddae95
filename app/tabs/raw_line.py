"""The line of a data file that a message speaks of, as it is in the file. No Qt."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 2000  # of a line that are shown
_CHUNK = 1 << 20
_PLACES = (
    re.compile(r"(?P<file>.+?), line (?P<line>\d+): ", re.DOTALL),
    re.compile(r".*? for line (?P<line>\d+) of (?P<file>.+?), but ", re.DOTALL),
)


def place_of(message: str) -> tuple[Path, int] | None:
    """The file and line (from 1) that a message of mesp_core names; None if it names none."""
    for pattern in _PLACES:
        if match := pattern.match(message):
            return Path(match["file"]), int(match["line"])
    return None


def raw_line(file: Path, line: int, on_progress: Callable[[str, float], None]) -> str | None:
    """The beginning of a line (from 1) as text; None if there is none. Never holds more than a piece of the file.

    `on_progress` is called now and then and may raise to cancel. Bytes that are no UTF-8 become U+FFFD.
    """
    try:
        if line < 1 or not os.path.isfile(file):
            return None
        with file.open("rb") as opened:
            raw = _find(opened, line, lambda: on_progress(f"Reading {file.name}", 0.0))
    except OSError:
        return None
    if raw is None:
        return None
    text = raw[:MAX_BYTES].decode("utf-8-sig", errors="replace").rstrip("\r\n")
    return text + f" … (the first {MAX_BYTES:,} bytes)" if len(raw) > MAX_BYTES else text


def _find(file: BinaryIO, line: int, on_chunk: Callable[[], None]) -> bytes | None:
    """The first bytes of a line, one more than are shown if it has more."""
    before = line - 1  # line ends still to be passed
    position = 0
    while before and (chunk := file.read(_CHUNK)):
        on_chunk()
        ends = chunk.count(b"\n")
        if ends < before:
            before -= ends
            position += len(chunk)
            continue
        start = 0
        for _ in range(before):
            start = chunk.index(b"\n", start) + 1
        before = 0
        position += start
    file.seek(position)
    return None if before else file.readline(MAX_BYTES + 1) or None
