"""Work that goes row by row of a (tokens × …) array, done for so many rows at a time that its temporaries stay small."""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mesp_core.device.evaluation import joined, piece
from mesp_core.ops.pieces import TOKENS


def row_slices(tokens: int, at_once: int) -> Iterator[slice]:
    """The rows 0…tokens-1 in slices."""
    for start in range(0, tokens, at_once):
        yield slice(start, min(start + at_once, tokens))


def rowwise(tokens: int, work: Callable[[slice], tuple[mx.array, ...]], at_once: int | None = None) -> tuple[mx.array, ...]:
    """`work(rows)` -> arrays of these rows, for all rows; each result is one array, evaluated."""
    parts: list[list[mx.array]] = []  # of each result
    for rows in row_slices(tokens, at_once or TOKENS):
        made = work(rows)
        piece(made)
        parts = parts or [[] for _ in made]
        for of_result, part in zip(parts, made, strict=True):
            of_result.append(part)
        made = part = None
    return tuple(joined(of_result) for of_result in parts)
