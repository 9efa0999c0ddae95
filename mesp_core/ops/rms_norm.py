"""RMSNorm (Zhang & Sennrich, arXiv 1910.07467): n = x·ρ·w with ρ = (mean x² + ε)^-½ over the last axis."""

import mlx.core as mx


def forward(x: mx.array, w: mx.array, eps: float) -> mx.array:
    """x (T × C), w (C) -> n (T × C), in x's dtype."""
    return mx.fast.rms_norm(x, w, eps)


def backward(g: mx.array, x: mx.array, w: mx.array, eps: float) -> mx.array:
    """g = ∂L/∂n (T × C) -> ∂x = ρ·(g·w) − x·ρ³·mean(g·w·x). The weight is frozen and gets no gradient."""
    x32 = x.astype(mx.float32)
    gw = g.astype(mx.float32) * w.astype(mx.float32)
    rho = mx.rsqrt(mx.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    dx = rho * gw - x32 * (rho**3 * mx.mean(gw * x32, axis=-1, keepdims=True))
    return dx.astype(x.dtype)
