"""Rows in pieces give what all rows at once give, each row once, in order."""

import mlx.core as mx
import pytest

from mesp_core.engine import rowwise as chunks
from mesp_core.engine.rowwise import row_slices, rowwise


@pytest.mark.parametrize("tokens, at_once, sizes", [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 3, [2]), (1, 1, [1]), (0, 3, [])])
def test_slices_are_every_row_once(tokens, at_once, sizes):
    slices = list(row_slices(tokens, at_once))
    assert [rows.stop - rows.start for rows in slices] == sizes
    assert [row for rows in slices for row in range(rows.start, rows.stop)] == list(range(tokens))


@pytest.mark.parametrize("at_once", [1, 3, 6, 7, 8, 100])
def test_pieces_are_put_together(at_once, noise):
    x = noise(7, 5)
    seen = []

    def work(rows):
        seen.append(rows.stop - rows.start)
        part = x[rows]
        return 2 * part, part.astype(mx.bfloat16)[:, :, None], part.sum(axis=-1)

    doubled, rounded, sums = rowwise(7, work, at_once)
    assert max(seen) <= at_once and sum(seen) == 7
    assert mx.array_equal(doubled, 2 * x)
    assert rounded.dtype == mx.bfloat16 and mx.array_equal(rounded, x.astype(mx.bfloat16)[:, :, None])
    assert sums.shape == (7,) and mx.allclose(sums, x.sum(axis=-1), atol=1e-6)


def test_the_usual_size_is_looked_up_at_each_call(monkeypatch):
    seen = []
    monkeypatch.setattr(chunks, "TOKENS", 4)
    rowwise(10, lambda rows: seen.append((rows.start, rows.stop)) or (mx.zeros((rows.stop - rows.start, 1)),))
    assert seen == [(0, 4), (4, 8), (8, 10)]


def test_a_piece_is_gone_before_the_next_is_made(exact_memory):
    """Of 8 pieces of 1 MB each, one exists beside the result."""
    piece = 2**20
    held = []

    def work(rows):
        held.append(mx.get_active_memory())
        result = mx.full((rows.stop - rows.start, piece // 4), 1.0)
        mx.eval(result)
        return (result,)

    start = mx.get_active_memory()
    mx.reset_peak_memory()
    (whole,) = rowwise(8, work, 1)
    assert mx.get_peak_memory() - start <= 8 * piece + 1.5 * piece
    assert held[1:] == [held[1]] * 7  # the result alone
    assert mx.array_equal(whole, mx.ones_like(whole))
