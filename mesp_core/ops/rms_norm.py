"""RMSNorm (Zhang & Sennrich, arXiv 1910.07467): n = x·ρ·w with ρ = (mean x² + ε)^-½ over the last axis.

A trained model's hidden states have a few numbers that are hundreds of times larger than the rest. On the CPU MLX adds up a
row in one float32 sum, in which the rest is lost beside them: ρ is then off by up to 1e-6, and the whole gradient of SmolLM2
in 3 bits by 1.4e-5. So means are taken in two levels here; with them it is 6e-6. A GPU adds up in a tree anyway: MLX's own
kernels are used there, of the norm and of its derivative.
"""

import math

import mlx.core as mx

from mesp_core.device.fused import NORM, one_kernel, own_kernel, trusted


def forward(x: mx.array, w: mx.array, eps: float) -> mx.array:
    """x (T × C), w (C) -> n (T × C), in x's dtype."""

    @mx.custom_function
    def norm(x: mx.array) -> mx.array:
        if trusted(NORM):
            return _fused(x, w, eps)
        x32 = x.astype(mx.float32)
        return (x32 * mx.rsqrt(_mean(x32 * x32) + eps) * w).astype(x.dtype)

    @norm.vjp
    def norm_vjp(x: mx.array, g: mx.array, n: mx.array) -> mx.array:
        return backward(g, x, w, eps)

    return norm(x)


def backward(g: mx.array, x: mx.array, w: mx.array, eps: float) -> mx.array:
    """g = ∂L/∂n (T × C) -> ∂x = ρ·(g·w) − x·ρ³·mean(g·w·x). The weight is frozen and gets no gradient."""
    if trusted(NORM):
        return _fused_backward(_weighted(g, w), x, eps)
    x32 = x.astype(mx.float32)
    gw = g.astype(mx.float32) * w.astype(mx.float32)
    rho = mx.rsqrt(_mean(x32 * x32) + eps)
    dx = rho * gw - x32 * (rho**3 * _mean(gw * x32))
    return dx.astype(x.dtype)


_fused = own_kernel(mx.fast.rms_norm)


@own_kernel
def _fused_backward(gw: mx.array, x: mx.array, eps: float) -> mx.array:
    return mx.vjp(lambda x: mx.fast.rms_norm(x, None, eps), [x], [gw.astype(x.dtype)])[1][0]


@one_kernel
def _weighted(g: mx.array, w: mx.array) -> mx.array:
    """g·w in w's dtype."""
    return (g.astype(mx.float32) * w.astype(mx.float32)).astype(w.dtype)


def _mean(x: mx.array) -> mx.array:
    """Over the last axis, which stays as one column; in two levels."""
    width = x.shape[-1]
    inner = max(n for n in range(1, math.isqrt(width) + 1) if width % n == 0)
    parts = x.reshape(*x.shape[:-1], width // inner, inner)
    return parts.sum(axis=-1).sum(axis=-1, keepdims=True) / width
