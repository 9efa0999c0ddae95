"""RMSNorm against MLX's autodiff of the plain formula."""

import mlx.core as mx
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
