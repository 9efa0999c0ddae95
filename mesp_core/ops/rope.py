"""Rotary position embedding (Su et al., arXiv 2104.09864): each pair of a head's numbers is turned by its position.

The backward of a rotation is the rotation by the opposite angle, that is, by negated positions.
"""

import math
from dataclasses import dataclass

import mlx.core as mx

from mesp_core.device.fused import own_kernel


@dataclass(frozen=True)
class Rotation:
    """How fast each pair turns: by `theta`, or by explicit `freqs` (D/2 wavelengths over 2π) where they are rescaled."""

    dims: int
    theta: float
    position_scale: float = 1.0
    freqs: mx.array | None = None
    traditional: bool = False


def forward(x: mx.array, rotation: Rotation) -> mx.array:
    """x (B × H × L × D) -> x turned by its position along L, from 0."""
    return _turn(x, rotation, rotation.position_scale)


def backward(g: mx.array, rotation: Rotation) -> mx.array:
    """g = ∂L/∂y (B × H × L × D) -> ∂x: g turned back."""
    return _turn(g, rotation, -rotation.position_scale)


def llama3_frequencies(dims: int, theta: float, llama3: tuple[float, float, float, float]) -> mx.array:
    """The D/2 divisors of Llama 3.1: long wavelengths stretched by `factor`, short ones kept, a ramp in between.

    llama3 = (factor, low_freq_factor, high_freq_factor, original context length).
    """
    factor, low, high, context = llama3
    freqs = theta ** (mx.arange(0, dims, 2) / dims)
    wavelengths = 2 * math.pi * freqs
    ramp = (context / wavelengths - low) / (high - low)  # 0 where stretched whole, 1 where kept
    between = freqs / ((1 - ramp) / factor + ramp)
    stretched = mx.where(wavelengths > context / low, freqs * factor, freqs)
    return mx.where((wavelengths > context / high) & (wavelengths < context / low), between, stretched)


@own_kernel
def _turn(x: mx.array, rotation: Rotation, scale: float) -> mx.array:
    return mx.fast.rope(
        x,
        rotation.dims,
        traditional=rotation.traditional,
        base=rotation.theta if rotation.freqs is None else None,
        scale=scale,
        offset=0,
        freqs=rotation.freqs,
    )
