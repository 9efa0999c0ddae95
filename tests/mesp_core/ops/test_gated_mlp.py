"""a = silu(u₁) ∘ u₂ against MLX's autodiff of the plain formula."""

import mlx.core as mx
import pytest

from mesp_core.ops import gated_mlp

# Relative to float32 on the same rounded inputs: some five rounded products in a row.
BOUNDS = {mx.bfloat16: 1.2e-2, mx.float16: 1.5e-3}


def reference(plain, g, gate, up):
    a, gradients = mx.vjp(plain.gated_mlp, [gate, up], [g])
    return a[0], *gradients


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 33, 20)], ids=str)
def test_forward_and_backward(shape, scale, noise, plain, assert_close):
    g, gate, up = noise(*shape, seed=1), noise(*shape, seed=2, scale=scale), noise(*shape, seed=3)
    a, dgate, dup = reference(plain, g, gate, up)
    assert_close(gated_mlp.forward(gate, up), a, name="a")
    found_gate, found_up = gated_mlp.backward(g, gate, up)
    assert_close(found_gate, dgate, name="dgate")
    assert_close(found_up, dup, name="dup")


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_half_precision(dtype, noise, plain, assert_close):
    g, gate, up = (noise(2, 33, 20, seed=seed, dtype=dtype) for seed in (1, 2, 3))
    expected = reference(plain, *(a.astype(mx.float32) for a in (g, gate, up)))
    found = (gated_mlp.forward(gate, up), *gated_mlp.backward(g, gate, up))
    for name, mine, wanted in zip(("a", "dgate", "dup"), found, expected, strict=True):
        assert mine.dtype == dtype
        assert_close(mine, wanted, BOUNDS[dtype], name)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_far_from_zero_the_gate_is_open_or_shut(dtype):
    gate = mx.array([[-2000.0, -100.0, 100.0, 2000.0]]).astype(dtype)
    up, g = mx.full((1, 4), 3.0, dtype), mx.full((1, 4), 2.0, dtype)
    dgate, dup = gated_mlp.backward(g, gate, up)
    assert mx.allclose(gated_mlp.forward(gate, up), mx.array([[0, 0, 300, 6000]]).astype(dtype), rtol=1e-2).item()
    assert mx.allclose(dgate, mx.array([[0, 0, 6, 6]]).astype(dtype)).item()
    assert mx.allclose(dup, mx.array([[0, 0, 200, 4000]]).astype(dtype), rtol=1e-2).item()


def test_autodiff_through_it(noise, plain, assert_close):
    """Of the forward, as `mebp` does; and far from zero it is as flat as the hand-written backward says."""
    g, gate, up = noise(3, 7, seed=1), noise(3, 7, seed=2), noise(3, 7, seed=3)
    _a, *expected = reference(plain, g, gate, up)
    for found, wanted in zip(mx.vjp(gated_mlp.forward, [gate, up], [g])[1], expected, strict=True):
        assert_close(found, wanted)
    gate, up, g = mx.array([[-2000.0, 2000.0]]), mx.full((1, 2), 3.0), mx.full((1, 2), 2.0)
    for found, wanted in zip(mx.vjp(gated_mlp.forward, [gate, up], [g])[1], gated_mlp.backward(g, gate, up), strict=True):
        assert mx.array_equal(found, wanted).item()
