"""A frozen linear layer with a low-rank adapter (Hu et al., arXiv 2106.09685): y = x·W₀ᵀ + b + s·(x·A)·B.

A and B are held as mlx-lm stores them: A (in × r), B (r × out), s = alpha / rank.
"""

from dataclasses import dataclass, replace

import mlx.core as mx

from mesp_core.device.fused import one_kernel
from mesp_core.device.in_use import on_gpu
from mesp_core.ops import frozen_matmul
from mesp_core.ops.frozen_matmul import FrozenLinear


@dataclass(frozen=True)
class LoRA:
    """One adapter: a (in × r), b (r × out) and the scale s."""

    a: mx.array
    b: mx.array
    scale: float


def in_float32(lora: LoRA | None) -> LoRA | None:
    """An adapter whose products are float32, whatever it is kept in."""
    return lora and replace(lora, a=lora.a.astype(mx.float32), b=lora.b.astype(mx.float32))


def low_rank(x: mx.array, lora: LoRA | None) -> mx.array | None:
    """h = x·A (T × r): what `mesp` recomputes in the backward and `mesp-store-h` keeps."""
    return None if lora is None else x @ lora.a


def forward(x: mx.array, linear: FrozenLinear, lora: LoRA | None, h: mx.array | None = None) -> mx.array:
    """x (T × in) -> y (T × out), in x's dtype. Without an adapter, the frozen product alone."""
    y = frozen_matmul.forward(x, linear)
    if lora is None:
        return y
    h = low_rank(x, lora) if h is None else h
    return plus_scaled(y, h @ lora.b, lora.scale)


@one_kernel
def plus_scaled(y: mx.array, more: mx.array, scale: float | None = None) -> mx.array:
    """y + scale·more, of one shape, in y's dtype: the frozen product and the adapter's share."""
    return y + (more if scale is None else scale * more).astype(y.dtype)


def backward(
    g: mx.array, x: mx.array, linear: FrozenLinear, lora: LoRA | None, h: mx.array | None = None
) -> tuple[mx.array, tuple[mx.array, mx.array] | None]:
    """g = ∂L/∂y (T × out), x (T × in) -> ∂x (T × in), (∂A, ∂B) (MeSP, arXiv 2602.13069, section 3).

    ∂B = s·hᵀ·g   ∂h = s·g·Bᵀ   ∂A = xᵀ·∂h   ∂x = g·W₀ + ∂h·Aᵀ,  with h = x·A recomputed unless it was kept.
    The scale goes into the small factors, so that no scaled copy of g is made.
    """
    if lora is None:
        return frozen_matmul.backward(g, linear), None
    h = low_rank(x, lora) if h is None else h
    g2, x2, h2 = (a.reshape(-1, a.shape[-1]) for a in (g, x, h))
    if on_gpu():  # once for both products of each; the CPU makes, and lets go of, one copy at a time
        g2, x2 = (a.astype(mx.result_type(a, h2)) for a in (g2, x2))
    db = lora.scale * (h2.T @ g2)
    dh = lora.scale * (g2 @ lora.b.T)
    da = x2.T @ dh
    dx = plus_scaled(frozen_matmul.backward(g, linear), (dh @ lora.a.T).reshape(x.shape))
    return dx, (da.astype(lora.a.dtype), db.astype(lora.b.dtype))
