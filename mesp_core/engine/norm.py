"""A norm's backward some rows at a time: it takes several float32 arrays as large as what it is given."""

import mlx.core as mx

from mesp_core.engine.rowwise import rowwise
from mesp_core.ops import rms_norm
from mesp_core.ops.pieces import NORM_TOKENS


def backward(dn: mx.array, x: mx.array, weight: mx.array, eps: float, beside: mx.array | None = None) -> mx.array:
    """dn = ∂L/∂n, x (T × C) -> ∂L/∂x through the norm, in x's dtype, evaluated; plus `beside`, what reaches x past it."""

    def some(rows: slice) -> tuple[mx.array]:
        dx = rms_norm.backward(dn[rows], x[rows], weight, eps)
        return (dx if beside is None else beside[rows] + dx,)

    return rowwise(x.shape[0], some, NORM_TOKENS)[0]
