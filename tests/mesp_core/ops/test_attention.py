"""Causal attention with grouped heads against MLX's autodiff of the textbook's formula."""

from functools import partial

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesp_core.ops import attention, pieces

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


def tiled(g, q, k, v, scale, lengths=None, window=None):
    """o, lse, dq, dk, dv, from views of B × L × heads·D as the projections leave them."""

    def view(a):
        joined = a.swapaxes(1, 2).reshape(a.shape[0], a.shape[2], -1)
        mx.eval(joined)
        return joined.reshape(*joined.shape[:2], a.shape[1], -1).swapaxes(1, 2)

    g, q, k, v = (view(a) for a in (g, q, k, v))
    o, lse = attention.tiled_forward(q, k, v, scale, lengths, window)
    return o, lse, *attention.tiled_backward([g, q, k, v, o, lse], scale, lengths, window)


def masked_reference(g, q, k, v, scale, lengths, window):
    """o, lse, dq, dk, dv by MLX's own attention with a mask, sample by sample; 0 beyond its length."""
    g, q, k, v = (a.astype(mx.float32) for a in (g, q, k, v))
    group, longest = q.shape[1] // k.shape[1], q.shape[2]
    samples = []
    for sample in range(q.shape[0]):
        n = longest if lengths is None else lengths[sample]
        if n == 0:
            samples.append([mx.zeros((1, *a.shape[1:])) for a in (q, q[..., 0], q, k, v)])
            continue
        gs, qs, ks, vs = (a[sample : sample + 1, :, :n] for a in (g, q, k, v))
        query, key = mx.arange(n)[:, None], mx.arange(n)
        seen = key <= query if window is None else (key <= query) & (key > query - window)
        attend = partial(mx.fast.scaled_dot_product_attention, scale=scale, mask=seen)
        o, gradients = mx.vjp(attend, [qs, ks, vs], [gs])
        scores = scale * (qs @ mx.repeat(ks, group, axis=1).swapaxes(-1, -2))
        lse = mx.logsumexp(mx.where(seen, scores, -mx.inf), axis=-1)
        beyond = [(0, 0), (0, 0), (0, longest - n), (0, 0)]
        samples.append([mx.pad(a, beyond[: a.ndim]) for a in (*o, lse, *gradients)])
    return [mx.concatenate(parts) for parts in zip(*samples, strict=True)]


def all_close(assert_close, found, expected, bound=1e-5):
    for name, mine, wanted in zip(("o", "lse"), found[:2], expected[:2], strict=True):
        assert_close(mine, wanted, bound, name)
    close(assert_close, found[2:], expected[2:], bound)


@pytest.fixture
def tiles(monkeypatch):
    """tiles(rows, keys): so small that a few positions fill several of them."""

    def make(rows, keys):
        monkeypatch.setattr(pieces, "TILE_ROWS", rows)
        monkeypatch.setattr(pieces, "TILE_KEYS", keys)

    return make


@pytest.mark.parametrize(
    "shape", [*SHAPES, (1, 2, 1, 257, 8), (1, 14, 2, 65, 16), (1, 1, 1, 256, 8), (1, 3, 3, 300, 8)], ids=str
)
def test_tiled_with_tiles_as_they_are(shape, inputs, assert_close):
    arrays, scale = inputs(*shape), 1.3 * shape[-1] ** -0.5
    found = tiled(*arrays, scale)
    assert [a.shape for a in found] == [arrays[1].shape, arrays[1].shape[:3], *(a.shape for a in arrays[1:])]
    all_close(assert_close, found, masked_reference(*arrays, scale, None, None))


@pytest.mark.parametrize("lengths", [None, (33, 7), (17, 0)], ids=str)
@pytest.mark.parametrize("window", [None, 1, 8, 20])
@pytest.mark.parametrize("rows, keys", [(16, 8), (4, 5), (9, 40)])
def test_tiled_with_lengths_and_a_window(lengths, window, rows, keys, inputs, tiles, assert_close):
    """Two query heads to a key/value head: tiles of 8 queries and 8 keys, of 2 and 5, of 4 and all."""
    tiles(rows, keys)
    arrays = inputs(2, 4, 2, 33, 8)
    found = tiled(*arrays, 0.35, lengths, window)
    all_close(assert_close, found, masked_reference(*arrays, 0.35, lengths, window))
    for sample, length in enumerate(lengths or ()):
        for array in found:
            assert mx.abs(array[sample, :, length:]).sum().item() == 0


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_tiled_half_precision(dtype, inputs, tiles, assert_close):
    """Sums over tiles are in float32: no worse than with one tile."""
    tiles(16, 8)
    arrays = inputs(2, 4, 2, 33, 16, dtype=dtype)
    found = tiled(*arrays, 0.25, (33, 20), 12)
    assert [a.dtype for a in found] == [dtype, mx.float32, dtype, dtype, dtype]
    all_close(assert_close, found, masked_reference(*arrays, 0.25, (33, 20), 12), BOUNDS[dtype])


def test_tiled_scores_in_the_thousands_stay_finite(inputs, tiles, assert_close):
    tiles(4, 2)
    arrays = inputs(1, 4, 2, 7, 16, scale=40.0)
    found, expected = tiled(*arrays, 0.25), masked_reference(*arrays, 0.25, None, None)
    for index in (0, 1, 4):
        assert_close(found[index], expected[index], 1e-4)
    assert all(mx.isfinite(a).all().item() for a in found)


def finite(a, positions):
    return mx.isfinite(a[:, :, positions]).all().item()


def test_what_lies_beyond_a_length_is_never_read(inputs, tiles, assert_close):
    """NaN would reach every sum it is multiplied into, even with 0."""
    tiles(16, 8)
    arrays = inputs(1, 4, 2, 33, 8)
    expected = tiled(*arrays, 0.35, (19,))
    for a in arrays:
        a[:, :, 19:] = mx.nan
    for mine, wanted in zip(tiled(*arrays, 0.35, (19,)), expected, strict=True):
        assert mx.array_equal(mine, wanted).item()


def test_tiles_that_no_query_sees_are_never_read(inputs, tiles):
    """Eight queries a tile. The key at 20 is read for queries 16…23, and for the next eight, whose window reaches it."""
    tiles(16, 8)
    g, q, k, v = inputs(1, 4, 2, 48, 8)
    k[:, :, 20] = v[:, :, 20] = mx.nan
    o, lse, dq, _dk, _dv = tiled(g, q, k, v, 0.35, window=12)
    for a in (o, lse, dq):
        assert finite(a, slice(0, 16)) and not finite(a, slice(16, 24)) and not finite(a, slice(24, 25))
        assert finite(a, slice(32, 48))  # 32 sees 21…32
    o, lse, dq, _dk, _dv = tiled(g, q, k, v, 0.35)
    for a in (o, lse, dq):
        assert finite(a, slice(0, 16)) and not any(finite(a, slice(row, row + 1)) for row in range(20, 48))


def extra_bytes(length, dtype):
    """What `tiled_forward` and `tiled_backward` need beside what goes in and comes out, at their peaks."""

    def measured(f):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        results = f()
        return results, mx.get_peak_memory() - before - sum(a.nbytes for a in results)

    q_shape, kv_shape = (1, 4, length, 16), (1, 2, length, 16)
    g, q, k, v = (mx.random.normal(shape).astype(dtype) for shape in (q_shape, q_shape, kv_shape, kv_shape))
    mx.eval(g, q, k, v)
    (o, lse), forward = measured(lambda: attention.tiled_forward(q, k, v, 0.25))
    _gradients, backward = measured(lambda: attention.tiled_backward([g, q, k, v, o, lse], 0.25))
    return forward, backward


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_memory_beside_inputs_and_outputs(dtype, tiles, exact_memory):
    """Forward: one tile, at any length. Backward: one tile, and ∂K and ∂V of a head in float32."""
    tiles(128, 64)
    tile, head = 4 * 128 * 64, 4 * 16  # bytes: one tile of scores; a position of one head
    extra_bytes(64, dtype)
    (forward, backward), (twice_forward, twice_backward) = extra_bytes(512, dtype), extra_bytes(1024, dtype)
    assert 0 < forward < 3 * tile and twice_forward < forward + 2048
    assert 0 < backward < 4 * tile + 2 * head * 512
    assert twice_backward < backward + 2 * head * 512 * (1 if dtype == mx.float32 else 1.5) + 2048
    assert twice_backward < 4 * 1024**2 / 10  # one head's probabilities


def test_heads_are_joined_without_a_copy(inputs, exact_memory):
    g, q, k, v = inputs(1, 4, 2, 64, 16)
    for a in tiled(g, q, k, v, 0.25):
        if a.ndim == 4:
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            mx.eval(a.swapaxes(1, 2).reshape(1, 64, -1))
            assert mx.get_peak_memory() - before < a.nbytes / 2
