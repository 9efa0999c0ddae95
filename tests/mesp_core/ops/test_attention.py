"""Causal attention with grouped heads against MLX's autodiff of the textbook's formula."""

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesp_core.ops import attention

# (batch, query heads, key/value heads, positions, head dim)
SHAPES = [
    (1, 1, 1, 1, 8),
    (1, 1, 1, 3, 8),
    (2, 4, 4, 7, 16),
    (2, 8, 2, 33, 16),
    (1, 4, 1, 33, 8),
    (3, 6, 3, 7, 24),
    (2, 14, 2, 3, 64),
]
# Relative to float32 on the same rounded inputs. O itself is rounded, and D = rowsum(g ∘ O) is made from it.
BOUNDS = {mx.bfloat16: 2e-2, mx.float16: 2.5e-3}


@pytest.fixture
def inputs(noise):
    """inputs(B, H, K, L, D, dtype) -> g, q, k, v"""

    def make(batch, heads, kv_heads, length, dims, dtype=mx.float32, scale=1.0):
        q_shape, kv_shape = (batch, heads, length, dims), (batch, kv_heads, length, dims)
        g, q = noise(*q_shape, seed=1, dtype=dtype), noise(*q_shape, seed=2, dtype=dtype, scale=scale)
        return g, q, noise(*kv_shape, seed=3, dtype=dtype, scale=scale), noise(*kv_shape, seed=4, dtype=dtype)

    return make


def reference(plain, g, q, k, v, scale):
    o, gradients = mx.vjp(lambda q, k, v: plain.attention(q, k, v, scale), [q, k, v], [g])
    return o[0], *gradients


def close(assert_close, found, expected, bound=1e-5):
    # a single position attends to itself alone: ∂q and ∂k are then 0 up to rounding
    floor = 1e-6 * max(mx.linalg.norm(e.astype(mx.float32)).item() for e in expected)
    for name, mine, wanted in zip(("dq", "dk", "dv"), found, expected, strict=True):
        if mx.linalg.norm(wanted).item() > floor:
            assert_close(mine, wanted, bound, name)
        else:
            assert mx.linalg.norm(mine.astype(mx.float32)).item() <= max(floor, bound), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [None, 1.3])
def test_forward_and_backward(shape, scale, inputs, plain, assert_close):
    """The scale is an argument: another one than D^-½ must be honoured in every place."""
    g, q, k, v = inputs(*shape)
    scale = scale or shape[-1] ** -0.5
    o, *expected = reference(plain, g, q, k, v, scale)
    assert_close(attention.forward(q, k, v, scale), o, name="o")
    close(assert_close, attention.backward(g, q, k, v, scale), expected)


@pytest.mark.parametrize("tile", [1, 2, 5, 32, 33, 100])
def test_tiles_of_queries(tile, inputs, plain, assert_close, monkeypatch):
    """Also where they do not divide the positions; the last row of a tile sees keys that the first does not."""
    monkeypatch.setattr(attention, "QUERY_TILE", tile)
    g, q, k, v = inputs(2, 4, 2, 33, 16)
    _o, *expected = reference(plain, g, q, k, v, 0.25)
    close(assert_close, attention.backward(g, q, k, v, 0.25), expected)


@pytest.mark.parametrize("length", [127, 128, 129, 257])
def test_lengths_around_the_tile_as_it_is(length, inputs, plain, assert_close):
    g, q, k, v = inputs(1, 2, 1, length, 8)
    _o, *expected = reference(plain, g, q, k, v, 8**-0.5)
    close(assert_close, attention.backward(g, q, k, v, 8**-0.5), expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES[2:4], ids=str)
def test_half_precision(shape, dtype, inputs, plain, assert_close, monkeypatch):
    monkeypatch.setattr(attention, "QUERY_TILE", 10)  # sums over tiles are in float32 too
    arrays, scale = inputs(*shape, dtype=dtype), shape[-1] ** -0.5
    o, *expected = reference(plain, *(a.astype(mx.float32) for a in arrays), scale)
    g, q, k, v = arrays
    found = attention.forward(q, k, v, scale)
    assert found.dtype == dtype
    assert_close(found, o, BOUNDS[dtype], "o")
    gradients = attention.backward(g, q, k, v, scale)
    assert [a.dtype for a in gradients] == [dtype] * 3
    close(assert_close, gradients, expected, BOUNDS[dtype])


def test_query_heads_share_the_head_next_to_them(inputs, plain, assert_close):
    """Heads 0…3 use key/value head 0: a gradient on head 0 alone reaches that one alone."""
    g, q, k, v = inputs(1, 8, 2, 7, 16)
    g = mx.concatenate([g[:, :1], mx.zeros_like(g[:, 1:])], axis=1)
    attention.forward(q, k, v, 0.25)
    dq, dk, dv = attention.backward(g, q, k, v, 0.25)
    for gradient in (dk, dv):
        assert mx.abs(gradient[:, 0]).max().item() > 0 and mx.abs(gradient[:, 1]).max().item() == 0
    assert mx.abs(dq[:, 1:]).max().item() == 0


def test_padding_on_the_right_reaches_no_real_position(inputs, assert_close):
    g, q, k, v = inputs(2, 4, 2, 9, 16)
    real, scale = 5, 0.25
    g = mx.concatenate([g[:, :, :real], mx.zeros_like(g[:, :, real:])], axis=2)
    o = attention.forward(q, k, v, scale)
    gradients = attention.backward(g, q, k, v, scale)
    short = [a[:, :, :real] for a in (g, q, k, v)]
    o_short = attention.forward(*short[1:], scale)
    assert_close(o[:, :, :real], o_short, 1e-6)
    for whole, alone in zip(gradients, attention.backward(*short, scale), strict=True):
        assert_close(whole[:, :, :real], alone, 1e-6)
        assert mx.abs(whole[:, :, real:]).max().item() == 0


def test_scores_in_the_thousands_stay_finite(inputs, plain, assert_close):
    """One position takes all: ∂q and ∂k all but vanish, and what is left is rounding, small beside what goes in."""
    g, q, k, v = inputs(1, 4, 2, 7, 16, scale=40.0)
    o, *expected = reference(plain, g, q, k, v, 0.25)
    assert_close(attention.forward(q, k, v, 0.25), o, 1e-4)
    dq, dk, dv = attention.backward(g, q, k, v, 0.25)
    assert_close(dv, expected[2], 1e-4)
    for found, wanted in zip((dq, dk), expected, strict=False):
        assert mx.linalg.norm(found - wanted).item() < 1e-6 * mx.linalg.norm(k).item() * mx.linalg.norm(g).item()


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    length=st.integers(2, 20),
    dims=st.sampled_from([2, 6, 16, 40]),
)
def test_any_shape(batch, kv_heads, group, length, dims, inputs, plain, assert_close):
    g, q, k, v = inputs(batch, kv_heads * group, kv_heads, length, dims)
    o, *expected = reference(plain, g, q, k, v, dims**-0.5)
    assert_close(attention.forward(q, k, v, dims**-0.5), o)
    close(assert_close, attention.backward(g, q, k, v, dims**-0.5), expected, 2e-5)
