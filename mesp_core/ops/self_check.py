"""Does this device multiply right? Training on wrong products fails silently, so the fast kernel is tried first.

`quantized_matmul(transpose=False)`, which every ∂x of a quantised layer needs, has been wrong on Metal for some shapes,
bits and group sizes (mlx issues 4201, 4250).
"""

import math
from dataclasses import dataclass, replace

import mlx.core as mx

from mesp_core.ops import frozen_matmul
from mesp_core.ops.frozen_matmul import FrozenLinear

# Largest relative difference ‖Δ‖/‖y‖ to a float32 product.
BOUNDS = {mx.float32: 1e-5, mx.float16: 1e-2, mx.bfloat16: 2e-2}


@dataclass(frozen=True)
class Verdict:
    """The kernel to use for one kind of layer, and the relative errors of the quantised one."""

    kernel: str
    forward_error: float
    backward_error: float

    @property
    def ok(self) -> bool:
        """Whether the quantised kernel may be used."""
        return self.kernel == "quantized"


def check_kernel(linear: FrozenLinear, tokens: int, dtype: mx.Dtype) -> Verdict:
    """Try both products of the quantised kernel on a real layer against float32 row blocks.

    With `tokens` rows of `dtype`, and with a single one: few labelled rows reach the head, and MLX has another kernel
    for few rows.
    """
    fast, slow = replace(linear, kernel="quantized", bias=None), replace(linear, kernel="dequantize", bias=None)
    key = mx.random.key(0)
    forward_error = backward_error = 0.0
    for rows in {1, tokens}:
        x, g = (_noise(rows, width, dtype, key) for width in (linear.in_features, linear.out_features))
        # The larger one, where NaN counts as the largest.
        forward_error = _larger(forward_error, _error(frozen_matmul.forward, fast, slow, x))
        backward_error = _larger(backward_error, _error(frozen_matmul.backward, fast, slow, g))
    ok = forward_error <= BOUNDS[dtype] and backward_error <= BOUNDS[dtype]
    return Verdict("quantized" if ok else "dequantize", forward_error, backward_error)


def _larger(a: float, b: float) -> float:
    return a if a >= b or math.isnan(a) else b


def _noise(tokens: int, width: int, dtype: mx.Dtype, key: mx.array) -> mx.array:
    return mx.random.normal((tokens, width), key=key).astype(dtype)


def _error(product, fast: FrozenLinear, slow: FrozenLinear, x: mx.array) -> float:  # noqa: ANN001 (either product)
    expected = product(x.astype(mx.float32), slow)
    difference = product(x, fast).astype(mx.float32) - expected
    return (mx.linalg.norm(difference) / mx.linalg.norm(expected)).item()
