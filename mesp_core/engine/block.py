"""One decoder block on top of `ops`: its forward, and its hand-written backward. Pre-norm, grouped-query attention, SwiGLU.

    x₂ = x + o_proj(attention(rope(q), rope(k), v)),  q, k, v = projections of rms_norm(x)
    y  = x₂ + down_proj(silu(gate_proj(n)) ∘ up_proj(n)),  n = rms_norm(x₂)

`adapters` maps a projection's name to its LoRA; a projection without one gets no gradient of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import mlx.core as mx

from mesp_core.engine import mlp
from mesp_core.engine.gradient_sums import Adapters, Gradients, GradientSums
from mesp_core.models.architecture import PROJECTIONS, Architecture
from mesp_core.ops import attention, cross_entropy, frozen_matmul, gated_mlp, lora_linear, rms_norm, rope
from mesp_core.ops.frozen_matmul import FrozenLinear
from mesp_core.ops.pieces import MESP_FEATURES
from mesp_core.ops.rope import Rotation
from mesp_core.weights.weights import Block


@dataclass(frozen=True)
class BlockShape:
    """What the maths needs to know of an architecture."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rotation: Rotation

    @classmethod
    def of(cls, architecture: Architecture) -> "BlockShape":
        """Built once a run, because it holds the rotation's frequencies."""
        spec, dims = architecture.rope, architecture.head_dim
        freqs = rope.llama3_frequencies(dims, spec.theta, spec.llama3) if spec.llama3 else None
        rotation = Rotation(dims, spec.theta, spec.position_scale, freqs, spec.traditional)
        heads, kv_heads = architecture.num_attention_heads, architecture.num_key_value_heads
        return cls(heads, kv_heads, dims, architecture.rms_norm_eps, rotation)

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5


@dataclass
class Kept:
    """What a re-run leaves for the backward: q, k (turned), v, o per head, x₂; and h of each projection if asked for."""

    q: mx.array
    k: mx.array
    v: mx.array
    o: mx.array
    x2: mx.array
    h: dict[str, mx.array] = field(default_factory=dict)


def forward(x: mx.array, block: Block, adapters: Adapters, shape: BlockShape) -> mx.array:
    """x (B × L × C) -> y (B × L × C)."""
    x2 = _attention_forward(x, block, adapters, shape).x2
    return x2 + _mlp_forward(x2, block, adapters, shape)


def backward(
    g: mx.array, x: mx.array, block: Block, adapters: Adapters, shape: BlockShape, keep_h: bool
) -> tuple[mx.array, Gradients]:
    """g = ∂L/∂y, x the block's input -> ∂L/∂x and the adapters' gradients; the block is re-run here.

    Each stage is evaluated before the next begins, so that what it no longer needs is gone by then. The block's own
    output is never recomputed: no gradient depends on it.
    """
    sums = GradientSums()

    def linear_backward(g: mx.array, x: mx.array, name: str, h: Mapping[str, mx.array]) -> mx.array:
        dx, pair = lora_linear.backward(g, x, block.linears[name], adapters.get(name), h.get(name))
        sums.add(name, pair)
        return dx

    kept = _attention_forward(x, block, adapters, shape, keep_h)
    mx.eval(kept.q, kept.k, kept.v, kept.o, kept.x2, kept.h)

    # MLP
    n = rms_norm.forward(kept.x2, block.norms["post_attention_layernorm"], shape.eps)
    of_mlp, n = (mlp.operand(part.reshape(-1, part.shape[-1]), block.linears) for part in (g, n))
    part_elements = min(frozen_matmul.BLOCK_ELEMENTS, MESP_FEATURES * x.shape[-1])
    dn = mlp.backward(of_mlp, n, block.linears, adapters, sums, part_elements).reshape(x.shape)
    of_mlp = n = None
    g = g + rms_norm.backward(dn, kept.x2, block.norms["post_attention_layernorm"], shape.eps)
    mx.eval(g)
    dn = kept.x2 = None

    # Attention
    o = join_heads(kept.o)
    do = split_heads(linear_backward(g, o, "o_proj", kept.h), shape.heads)
    mx.eval(do)
    o = kept.o = None
    dq, dk, dv = attention.backward(do, kept.q, kept.k, kept.v, shape.scale)
    dq, dk = rope.backward(dq, shape.rotation), rope.backward(dk, shape.rotation)
    mx.eval(dq, dk, dv)
    do = kept.q = kept.k = kept.v = None
    n = rms_norm.forward(x, block.norms["input_layernorm"], shape.eps)
    dn = linear_backward(join_heads(dq), n, "q_proj", kept.h)
    dn = dn + linear_backward(join_heads(dk), n, "k_proj", kept.h)
    dn = dn + linear_backward(join_heads(dv), n, "v_proj", kept.h)
    dx = g + rms_norm.backward(dn, x, block.norms["input_layernorm"], shape.eps)
    mx.eval(dx)
    return dx, sums.take(adapters)


def _attention_forward(x: mx.array, block: Block, adapters: Adapters, shape: BlockShape, keep_h: bool = False) -> Kept:
    h: dict[str, mx.array] = {}
    keep = h if keep_h else None
    n = rms_norm.forward(x, block.norms["input_layernorm"], shape.eps)
    q, k, v = (_linear_forward(n, name, block, adapters, keep) for name in ("q_proj", "k_proj", "v_proj"))
    q = rope.forward(split_heads(q, shape.heads), shape.rotation)
    k = rope.forward(split_heads(k, shape.kv_heads), shape.rotation)
    v = split_heads(v, shape.kv_heads)
    o = attention.forward(q, k, v, shape.scale)
    x2 = x + _linear_forward(join_heads(o), "o_proj", block, adapters, keep)
    return Kept(q, k, v, o, x2, h)


def _mlp_forward(x2: mx.array, block: Block, adapters: Adapters, shape: BlockShape) -> mx.array:
    n = rms_norm.forward(x2, block.norms["post_attention_layernorm"], shape.eps)
    gate, up = (_linear_forward(n, name, block, adapters) for name in ("gate_proj", "up_proj"))
    return _linear_forward(gated_mlp.forward(gate, up), "down_proj", block, adapters)


def used_shapes(name: str, linear: FrozenLinear) -> list[FrozenLinear]:
    """A layer in every shape that the quantised kernel meets it in: whole, in row blocks where it is read from the file,
    an MLP's also in parts, the head in parts only."""
    cut, features, part = frozen_matmul.outputs, linear.out_features, linear.out_features
    if name == "down_proj":
        cut, features, part = frozen_matmul.inputs, linear.in_features, mlp.MLP_FEATURES
    elif name in mlp.PROJECTIONS:
        part = mlp.MLP_FEATURES
    elif name not in PROJECTIONS:
        part = cross_entropy.HEAD_ROWS
    shapes = {(cut, size) for size in (min(part, features), features % part) if size}
    if name in PROJECTIONS:
        whole = linear.out_features
        blocks = {stop - start for start, stop in frozen_matmul.stored_blocks(linear)}
        shapes |= {(frozen_matmul.outputs, size) for size in (whole, *blocks)}
    linear = replace(linear, kernel="quantized")
    return [cut(linear, 0, size) for cut, size in sorted(shapes, key=lambda shape: (shape[0].__name__, shape[1]))]


def _linear_forward(
    x: mx.array, name: str, block: Block, adapters: Adapters, keep: dict[str, mx.array] | None = None
) -> mx.array:
    if keep is not None:
        _keep(x, name, adapters, keep)
    return lora_linear.forward(x, block.linears[name], adapters.get(name), None if keep is None else keep.get(name))


def _keep(x: mx.array, name: str, adapters: Adapters, keep: dict[str, mx.array]) -> None:
    if name in adapters:
        keep[name] = lora_linear.low_rank(x, adapters[name])


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(B × L × H·D) -> (B × H × L × D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def join_heads(x: mx.array) -> mx.array:
    """(B × H × L × D) -> (B × L × H·D)."""
    batch, heads, length, dims = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * dims)
