"""The gate of a SwiGLU MLP (Shazeer, arXiv 2002.05202): a = silu(u₁) ∘ u₂, with silu(u) = u·σ(u).

σ(u₁) may be handed over where both directions need it: on the CPU it costs as much as a dozen products.
"""

import mlx.core as mx

from mesp_core.device.fused import one_kernel
from mesp_core.ops import exponential


@one_kernel
def forward(gate: mx.array, up: mx.array, sigma: mx.array | None = None) -> mx.array:
    """u₁, u₂ (T × M), and σ(u₁) where it is at hand -> a (T × M), in their dtype."""
    return gate * (exponential.sigmoid(gate) if sigma is None else sigma) * up


@one_kernel
def backward(g: mx.array, gate: mx.array, up: mx.array, sigma: mx.array | None = None) -> tuple[mx.array, mx.array]:
    """g = ∂L/∂a (T × M) -> ∂u₁ = g·u₂·σ(u₁)·(1 + u₁·(1 − σ(u₁))),  ∂u₂ = g·silu(u₁)."""
    sigma = exponential.sigmoid(gate) if sigma is None else sigma
    return g * up * sigma * (1 + gate * (1 - sigma)), g * gate * sigma


@one_kernel
def both(g: mx.array, gate: mx.array, up: mx.array, sigma: mx.array | None = None) -> tuple[mx.array, mx.array, mx.array]:
    """g = ∂L/∂a (T × M) -> a, ∂u₁, ∂u₂, where the backward wants a again."""
    sigma = exponential.sigmoid(gate) if sigma is None else sigma
    return forward(gate, up, sigma), *backward(g, gate, up, sigma)
