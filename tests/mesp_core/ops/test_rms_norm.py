"""RMSNorm against MLX's autodiff of the plain formula."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesp_core.ops import rms_norm

# Relative to float32 on the same rounded inputs: the result is rounded once, inside it is float32.
BOUNDS = {mx.bfloat16: 6e-3, mx.float16: 8e-4}


def reference(plain, g, x, w, eps):
    y, (dx,) = mx.vjp(lambda x: plain.rms_norm(x, w, eps), [x], [g])
    return y[0], dx


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("shape", [(1, 8), (3, 64), (2, 7, 33), (1, 33, 128)], ids=str)
def test_forward_and_backward(shape, scale, eps, noise, plain, assert_close):
    """Also where ε is as large as the mean square, so that a misplaced ε shows."""
    x, w, g = noise(*shape, scale=scale), 1 + noise(shape[-1], seed=1, scale=0.5), noise(*shape, seed=2)
    y, dx = reference(plain, g, x, w, eps)
    assert_close(rms_norm.forward(x, w, eps), y, name="y")
    assert_close(rms_norm.backward(g, x, w, eps), dx, name="dx")


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_half_precision(dtype, noise, plain, assert_close):
    x, w, g = noise(2, 7, 64, dtype=dtype), noise(64, seed=1, dtype=dtype), noise(2, 7, 64, seed=2, dtype=dtype)
    y, dx = reference(plain, *(a.astype(mx.float32) for a in (g, x, w)), 1e-6)
    found_y, found_dx = rms_norm.forward(x, w, 1e-6), rms_norm.backward(g, x, w, 1e-6)
    assert (found_y.dtype, found_dx.dtype) == (dtype, dtype)
    assert_close(found_y, y, BOUNDS[dtype], "y")
    assert_close(found_dx, dx, BOUNDS[dtype], "dx")


def test_float16_squares_that_overflow_do_not(noise, plain, assert_close):
    """400² is more than float16 can hold."""
    x, w, g = (noise(3, 64, seed=s, dtype=mx.float16, scale=c) for s, c in ((0, 400.0), (1, 1.0), (2, 1.0)))
    w = w[0]
    y, dx = reference(plain, *(a.astype(mx.float32) for a in (g, x, w)), 1e-6)
    assert_close(rms_norm.forward(x, w, 1e-6), y, BOUNDS[mx.float16], "y")
    # ∂x is some 1/400: near float16's smallest numbers, where a rounding costs more
    assert_close(rms_norm.backward(g, x, w, 1e-6), dx, 5e-3, "dx")


def test_a_zero_row(noise, assert_close):
    """n = x·w/√ε around 0."""
    w, g = noise(16, seed=1), noise(1, 16, seed=2)
    assert mx.abs(rms_norm.forward(mx.zeros((1, 16)), w, 1e-4)).max().item() == 0
    assert_close(rms_norm.backward(g, mx.zeros((1, 16)), w, 1e-4), g * w / 1e-2)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 5), width=st.integers(2, 70))
def test_the_gradient_is_blind_to_the_length_of_x(rows, width, noise, plain, assert_close):
    """With ε = 0 a norm does not see how long x is, so ∂x stands at right angles to x; and any shape is right."""
    x, w, g = noise(rows, width), noise(width, seed=1), noise(rows, width, seed=2)
    dx = rms_norm.backward(g, x, w, 0.0)
    cosine = (dx * x).sum(axis=-1) / (mx.linalg.norm(dx, axis=-1) * mx.linalg.norm(x, axis=-1))
    # With two columns ∂x can nearly vanish, and rounding is then all that is left of it.
    assert width < 4 or mx.abs(cosine).max().item() < 1e-4
    assert_close(rms_norm.backward(g, x, w, 1e-5), reference(plain, g, x, w, 1e-5)[1], 1e-5 if width >= 4 else 1e-3)


def test_a_row_with_a_few_large_numbers():
    """As trained models have them: in one float32 sum of squares the rest of the row would be lost beside them."""
    rng, width, eps = np.random.default_rng(0), 576, 1e-5
    x, g, w = (rng.normal(size=shape).astype(np.float32) for shape in ((96, width), (96, width), (width,)))
    x[:, 7] *= 300
    x64, gw = x.astype(np.float64), g.astype(np.float64) * w
    rho = 1 / np.sqrt((x64**2).mean(-1, keepdims=True) + eps)
    y, dx = x64 * rho * w, rho * gw - x64 * rho**3 * (gw * x64).mean(-1, keepdims=True)
    arrays = [mx.array(a) for a in (g, x, w)]
    for found, exact in ((rms_norm.forward(*arrays[1:], eps), y), (rms_norm.backward(*arrays, eps), dx)):
        assert np.linalg.norm(np.array(found) - exact) <= 1.5e-7 * np.linalg.norm(exact)


def test_autodiff_goes_through_the_backward(noise):
    x, g, w = noise(3, 16), noise(3, 16, seed=1), noise(16, seed=2)
    _, (dx,) = mx.vjp(lambda x: rms_norm.forward(x, w, 1e-6), [x], [g])
    assert mx.allclose(dx, rms_norm.backward(g, x, w, 1e-6), rtol=1e-5, atol=1e-6)
