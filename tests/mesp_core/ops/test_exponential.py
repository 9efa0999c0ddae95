"""eˣ and σ against numpy in double precision, and their derivatives through MLX's autodiff."""

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.ops import exponential

BOUNDS = {mx.float32: 0.0, mx.bfloat16: 2**-8, mx.float16: 2**-11}
FAR = [-np.inf, -1e30, -2000.0, -120.0, 120.0, 2000.0, 1e30, np.inf]


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("mine, exact", [(exponential.exp, np.exp), (exponential.sigmoid, sigmoid)], ids=["exp", "sigmoid"])
def test_within_rounding_over_the_whole_range(dtype, mine, exact):
    """A step of the dtype, and the rounding of x·log₂e; below the smallest normal number, steps are that coarse."""
    x = mx.linspace(-86, 11 if dtype == mx.float16 else 86, 20001).astype(dtype)
    found = mine(x)
    assert found.dtype == dtype
    x, found = (np.array(a.astype(mx.float32)).astype(np.float64) for a in (x, found))
    allowed = (BOUNDS[dtype] + 1.5e-7 * (1 + np.abs(x))) * exact(x) + (2**-24 if dtype == mx.float16 else 0)
    assert (np.abs(found - exact(x)) <= allowed).all()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_far_from_zero(dtype):
    x = mx.array(FAR).astype(dtype)
    assert mx.array_equal(exponential.exp(x), mx.array([0.0] * 4 + [np.inf] * 4).astype(dtype)).item()
    assert mx.array_equal(exponential.sigmoid(x), mx.array([0] * 4 + [1] * 4).astype(dtype)).item()
    assert mx.array_equal(exponential.sigmoid(mx.zeros((3, 0), dtype)), mx.zeros((3, 0), dtype)).item()
    assert mx.isnan(exponential.sigmoid(mx.array([np.nan]))).item() and mx.isnan(exponential.exp(mx.array([np.nan]))).item()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_the_slope_of_sigmoid_is_zero_where_it_is_flat(dtype):
    """The textbook's formula has 0·∞ there."""
    x = mx.array(FAR).astype(dtype)
    slope = mx.vjp(exponential.sigmoid, [x], [mx.ones_like(x)])[1][0]
    assert slope.dtype == dtype and mx.array_equal(slope, mx.zeros_like(x)).item()


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_autodiff(name, noise, assert_close):
    """The first derivative and, of a sum that is not linear, the second."""
    x, g = noise(7, 33, seed=1, scale=3.0), noise(7, 33, seed=2)
    mine, theirs = getattr(exponential, name), getattr(mx, name)

    def first(f):
        return lambda x: mx.vjp(f, [x], [g])[1][0]

    assert_close(first(mine)(x), first(theirs)(x), 1e-6)
    assert_close(first(first(mine))(x), first(first(theirs))(x), 2e-6)
    x = x.astype(mx.bfloat16)
    assert_close(first(mine)(x), first(theirs)(x.astype(mx.float32)), 1e-2)
