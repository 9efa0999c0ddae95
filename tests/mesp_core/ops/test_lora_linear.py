"""y = x·W₀ᵀ + b + s·(x·A)·B and its three gradients against MLX's autodiff of the plain formula."""

import mlx.core as mx
import pytest

from mesp_core.ops import lora_linear
from mesp_core.ops.lora_linear import LoRA

OUT, IN, RANK, SCALE = 40, 64, 3, 1.7
# Relative to float32 on the same rounded inputs: ∂x, ∂A, ∂B and y pass through up to three rounded products.
BOUNDS = {mx.bfloat16: 2e-2, mx.float16: 2.5e-3}


@pytest.fixture
def lora(noise):
    """A, B (not zero) and the scale."""
    return LoRA(noise(IN, RANK, seed=11, scale=IN**-0.5), noise(RANK, OUT, seed=12), SCALE)


def reference(plain, x, g, dense, bias, lora):
    """y and the gradients of x, A and B."""
    y, gradients = mx.vjp(lambda x, a, b: plain.linear(x, dense, bias, a, b, lora.scale), [x, lora.a, lora.b], [g])
    return y[0], *gradients


@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bits", [None, 2, 4, 8])
@pytest.mark.parametrize("leading", [(1,), (7,), (2, 33)], ids=str)
def test_forward_and_gradients(leading, bits, bias, kernel, lora, make_linear, noise, plain, assert_close):
    linear, dense, b = make_linear(OUT, IN, bits=bits, bias=bias, kernel=kernel)
    x, g = noise(*leading, IN), noise(*leading, OUT, seed=2)
    y, dx, da, db = reference(plain, x, g, dense, b, lora)
    assert_close(lora_linear.forward(x, linear, lora), y, name="y")
    found, (found_a, found_b) = lora_linear.backward(g, x, linear, lora)
    assert_close(found, dx, name="dx")
    assert_close(found_a, da, name="da")
    assert_close(found_b, db, name="db")


def test_a_zero_b_has_a_gradient_and_passes_none_to_a(make_linear, noise, plain, assert_close):
    linear, dense, b = make_linear(OUT, IN, bits=4)
    lora = LoRA(noise(IN, RANK, seed=11), mx.zeros((RANK, OUT)), SCALE)
    x, g = noise(7, IN), noise(7, OUT, seed=2)
    _, dx, _, db = reference(plain, x, g, dense, b, lora)
    found, (found_a, found_b) = lora_linear.backward(g, x, linear, lora)
    assert_close(found, dx)
    assert_close(found_b, db)
    assert mx.abs(found_a).max().item() == 0


def test_a_kept_h_gives_the_same_and_is_the_one_used(lora, make_linear, noise):
    linear, _, _ = make_linear(OUT, IN, bits=4, bias=True)
    x, g = noise(2, 7, IN), noise(2, 7, OUT, seed=2)
    h = lora_linear.low_rank(x, lora)
    assert h.shape == (2, 7, RANK)
    assert mx.array_equal(lora_linear.forward(x, linear, lora, h), lora_linear.forward(x, linear, lora))
    dx, (da, db) = lora_linear.backward(g, x, linear, lora)
    kept_dx, (kept_da, kept_db) = lora_linear.backward(g, x, linear, lora, h)
    assert all(mx.array_equal(a, b) for a, b in ((dx, kept_dx), (da, kept_da), (db, kept_db)))
    _, (_, doubled) = lora_linear.backward(g, x, linear, lora, 2 * h)
    assert mx.allclose(doubled, 2 * db, rtol=1e-6)


def test_without_an_adapter_it_is_the_frozen_product(make_linear, noise, plain, assert_close):
    linear, dense, bias = make_linear(OUT, IN, bits=4, bias=True)
    x, g = noise(2, 7, IN), noise(2, 7, OUT, seed=2)
    assert lora_linear.low_rank(x, None) is None
    assert_close(lora_linear.forward(x, linear, None), plain.linear(x, dense, bias))
    dx, pair = lora_linear.backward(g, x, linear, None)
    assert pair is None
    assert_close(dx, g @ dense)


@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
@pytest.mark.parametrize("adapter_dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_dtypes_stay_and_values_are_near_float32(
    dtype, adapter_dtype, kernel, lora, make_linear, noise, plain, assert_close
):
    """Activations keep theirs, adapters' gradients are in the adapters'."""
    linear, dense, bias = make_linear(OUT, IN, bits=4, dtype=mx.bfloat16, bias=True, kernel=kernel)
    lora = LoRA(lora.a.astype(adapter_dtype), lora.b.astype(adapter_dtype), lora.scale)
    exact = LoRA(lora.a.astype(mx.float32), lora.b.astype(mx.float32), lora.scale)
    x, g = noise(2, 9, IN, dtype=dtype), noise(2, 9, OUT, seed=2, dtype=dtype)
    expected = reference(plain, x.astype(mx.float32), g.astype(mx.float32), dense, bias, exact)
    y = lora_linear.forward(x, linear, lora)
    dx, (da, db) = lora_linear.backward(g, x, linear, lora)
    assert (y.dtype, dx.dtype, da.dtype, db.dtype) == (dtype, dtype, adapter_dtype, adapter_dtype)
    bound = max(BOUNDS[dtype], BOUNDS.get(adapter_dtype, 0))
    for name, found, wanted in zip(("y", "dx", "da", "db"), (y, dx, da, db), expected, strict=True):
        assert_close(found, wanted, bound, name)


@pytest.mark.parametrize("adapter_dtype", [mx.bfloat16, mx.float16], ids=str)
def test_half_precision_adapters_on_float32_activations(adapter_dtype, lora, make_linear, noise, plain, assert_close):
    linear, dense, bias = make_linear(OUT, IN, bits=4)
    lora = LoRA(lora.a.astype(adapter_dtype), lora.b.astype(adapter_dtype), lora.scale)
    exact = LoRA(lora.a.astype(mx.float32), lora.b.astype(mx.float32), lora.scale)
    x, g = noise(9, IN), noise(9, OUT, seed=2)
    y, dx, da, db = reference(plain, x, g, dense, bias, exact)
    found, (found_a, found_b) = lora_linear.backward(g, x, linear, lora)
    assert (found.dtype, found_a.dtype, found_b.dtype) == (mx.float32, adapter_dtype, adapter_dtype)
    assert_close(lora_linear.forward(x, linear, lora), y)
    assert_close(found, dx)
    assert_close(found_a, da, BOUNDS[adapter_dtype])
    assert_close(found_b, db, BOUNDS[adapter_dtype])
