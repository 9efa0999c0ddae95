"""The short-lived process that makes ids readable: `python -m mesp_core.data.preview_child`.

The request holds the arguments of `readable_samples`; the reply is {"samples": what it returns}.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from mesp_core.data.rows import Row, read_rows
from mesp_core.data.token_set import TokenSet
from mesp_core.data.tokenizer import describe
from mesp_core.errors import DataError
from mesp_core.processes.child_side import Request, Say, serve

Pieces = list[tuple[str, bool]]


def readable_samples(
    tokens: Path, data: Path, model_dir: Path, first: int, count: int, description: Path | None = None
) -> list[tuple[list[str], Pieces]]:
    """(roles, pieces) of `count` samples of a token set from `first` on.

    Raises:
        UsageError, DataError: `data` cannot be read, or is not what the token set was made of.
        CheckpointError: the tokenizer is missing or broken.
    """
    token_set = TokenSet.open(tokens)
    tokenizer = describe(model_dir, description).load()
    indices = range(first, first + count)
    roles = _roles(token_set, data, {token_set.line(index) for index in indices})

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    return [(roles.get(token_set.line(index), []), pieces(*token_set.sample(index), decode)) for index in indices]


def pieces(ids: np.ndarray, mask: np.ndarray, decode: Callable[[list[int]], str]) -> Pieces:
    """The decoded ids (n,), cut where the mask (n,) changes: (text, mask) of each run. Joined they are the whole text.

    A run is not decoded alone: it may begin with a space that decoders strip from the beginning of a text, or in the middle
    of a character. A piece ends where the text of all ids up to there and the whole text part; so a character that lies
    across the border belongs to the piece after it.
    """
    ids = ids.tolist()
    whole = decode(ids)
    borders = [int(border) for border in np.flatnonzero(np.diff(mask)) + 1]
    ends = [0]
    for border in borders:
        ends.append(max(ends[-1], _in_common(whole, decode(ids[:border]))))
    ends.append(len(whole))
    starts = [0, *borders]
    return [(whole[a:b], bool(mask[start])) for (a, b), start in zip(pairwise(ends), starts, strict=True)]


def _in_common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _roles(tokens: TokenSet, data: Path, lines: set[int]) -> dict[int, list[str]]:
    if tokens.kind in ("text", "tokens") or data.is_fifo() or data.is_char_device():  # a pipe has nothing left to read
        return {}
    rows = list(read_rows(data, only=lines))
    if {row.line for row in rows} != lines or any(row.kind != tokens.kind for row in rows):
        raise DataError(f"{data} has changed since it was tokenised. Choose it again.")
    return {row.line: _roles_of(row) for row in rows}


def _roles_of(row: Row) -> Sequence[str]:
    return ["prompt", "completion"] if row.kind == "completion" else [message["role"] for message in row.messages]


def _work(request: Request, say: Say) -> None:
    paths = {name: Path(request.pop(name)) for name in ("tokens", "data", "model_dir", "description")}
    say({"samples": readable_samples(**paths, **request)})


if __name__ == "__main__":
    serve(_work)
