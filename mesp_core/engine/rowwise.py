"""Work that goes row by row of a (tokens × …) array, done for so many rows at a time that its temporaries stay small."""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mesp_core.device.evaluation import piece
from mesp_core.device.gathered import Gathered
from mesp_core.ops.pieces import TOKENS


def row_slices(tokens: int, at_once: int) -> Iterator[slice]:
    """The rows 0…tokens-1 in slices."""
    for start in range(0, tokens, at_once):
        yield slice(start, min(start + at_once, tokens))


def rowwise(tokens: int, work: Callable[[slice], tuple[mx.array, ...]], at_once: int | None = None) -> tuple[mx.array, ...]:
    """`work(rows)` -> arrays of these rows, for all rows; each result is one array, evaluated."""
    results: list[Gathered] = []
    for rows in row_slices(tokens, at_once or TOKENS):
        parts = work(rows)
        results = results or [Gathered((tokens, *part.shape[1:]), part.dtype) for part in parts]
        made = [result.put(rows, part) for result, part in zip(results, parts, strict=True)]
        parts = None
        piece(made)
        made = None
    return tuple(result.whole() for result in results)
