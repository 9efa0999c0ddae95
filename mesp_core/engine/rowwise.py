"""Work that goes row by row of a (tokens × …) array, done for so many rows at a time that its temporaries stay small."""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mesp_core.ops.pieces import TOKENS


def row_slices(tokens: int, at_once: int) -> Iterator[slice]:
    """The rows 0…tokens-1 in slices."""
    for start in range(0, tokens, at_once):
        yield slice(start, min(start + at_once, tokens))


def rowwise(tokens: int, work: Callable[[slice], tuple[mx.array, ...]], at_once: int | None = None) -> tuple[mx.array, ...]:
    """`work(rows)` -> arrays of these rows, for all rows; each result is one array, filled in place, evaluated."""
    at_once = at_once or TOKENS
    if tokens <= at_once:
        results = work(slice(0, tokens))
        mx.eval(results)
        return results
    results: list[mx.array] = []
    for rows in row_slices(tokens, at_once):
        parts = work(rows)
        if not results:
            results = [mx.zeros((tokens, *part.shape[1:]), part.dtype) for part in parts]
        for result, part in zip(results, parts, strict=True):
            result[rows] = part
        part = parts = None
        mx.eval(results)
    return tuple(results)
