"""Does this device multiply right? Training on wrong products fails silently, so the fast kernel is tried first.

`quantized_matmul(transpose=False)`, which every ∂x of a quantised layer needs, has been wrong on Metal for some shapes,
bits and group sizes (mlx issues 4201, 4250).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

import mlx.core as mx

from mesp_core.device.evaluation import needed
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


def check_kernel(shapes: Sequence[FrozenLinear], tokens: int, dtype: mx.Dtype, more_rows: Collection[int] = ()) -> Verdict:
    """Try both products of the quantised kernel against float32 row blocks, on a real layer in every shape it is used in.

    With `tokens` rows of `dtype`, with one less (a batch is as long as its longest sample, any number), and with few: few
    labelled rows may reach the head, and MLX has other kernels for few rows; and with `more_rows`. A layer that is wrong in
    one of its shapes is not trusted in any.
    """
    forward_error = backward_error = 0.0
    for linear, rows in product(shapes, {1, min(13, tokens), max(1, tokens - 1), tokens, *more_rows}):
        fast, slow = replace(linear, kernel="quantized", bias=None), replace(linear, kernel="dequantize", bias=None)
        forward_error = _larger(forward_error, _forward_error(fast, slow, _noise(rows, linear.in_features, dtype)))
        backward_error = _larger(backward_error, _backward_error(fast, slow, _noise(rows, linear.out_features, dtype)))
    # Written so that a NaN fails.
    ok = forward_error <= BOUNDS[dtype] and backward_error <= BOUNDS[dtype]
    return Verdict("quantized" if ok else "dequantize", forward_error, backward_error)


def _noise(rows: int, width: int, dtype: mx.Dtype) -> mx.array:
    return mx.random.normal((rows, width), key=mx.random.key(0)).astype(dtype)


def _forward_error(fast: FrozenLinear, slow: FrozenLinear, x: mx.array) -> float:
    """Block by block: the head's expected product is as large as all logits, and would show in the run's footprint."""
    y, operand = frozen_matmul.forward(x, fast), x.astype(mx.float32)
    needed(y, operand)
    squares = mx.zeros((2,))
    for start, stop in frozen_matmul.row_blocks(slow):
        expected = operand @ frozen_matmul.dequantized_rows(slow, slice(start, stop)).T
        difference = y[:, start:stop].astype(mx.float32) - expected
        squares = squares + mx.stack([difference.square().sum(), expected.square().sum()])
        expected = difference = None
        needed(squares)
    return (squares[0] / squares[1]).sqrt().item()


def _backward_error(fast: FrozenLinear, slow: FrozenLinear, g: mx.array) -> float:
    expected = frozen_matmul.backward(g.astype(mx.float32), slow)
    difference = frozen_matmul.backward(g, fast).astype(mx.float32) - expected
    return (mx.linalg.norm(difference) / mx.linalg.norm(expected)).item()


def _larger(a: float, b: float) -> float:
    """The larger one, where NaN counts as the largest."""
    return a if a >= b or math.isnan(a) else b
