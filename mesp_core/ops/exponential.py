"""eˣ and σ(x) = 1/(1 + e⁻ˣ), fast on every device.

On the CPU MLX's own exponential costs two and a half times as much as its power: there eˣ = 2^(x·log₂e), in float32 whatever
the dtype. Like MLX's own, it is off by the rounding of x·log₂e, some |x|·10⁻⁷ of the result. On a GPU both are MLX's own.
σ carries its own derivative for autodiff, y·(1 − y): that of its formula would be 0·∞ where e⁻ˣ overflows.
"""

import math

import mlx.core as mx

from mesp_core.device.in_use import on_gpu


def exp(x: mx.array) -> mx.array:
    """x, of any shape -> eˣ in x's dtype: 0 at −∞, ∞ where it overflows."""
    return mx.exp(x) if on_gpu() else _power(x, 1.0).astype(x.dtype)


def sigmoid(x: mx.array) -> mx.array:
    """x, of any shape -> σ(x) in x's dtype: 0 and 1 far from zero, never ∞ or NaN."""
    return mx.sigmoid(x) if on_gpu() else _sigmoid(x)


def _power(x: mx.array, factor: float) -> mx.array:
    """e^(factor·x) in float32."""
    return mx.power(2.0, x.astype(mx.float32) * (factor * math.log2(math.e)))


@mx.custom_function
def _sigmoid(x: mx.array) -> mx.array:
    return (1 / (1 + _power(x, -1.0))).astype(x.dtype)


@_sigmoid.vjp
def _sigmoid_vjp(x: mx.array, g: mx.array, y: mx.array) -> mx.array:
    return g * y * (1 - y)
