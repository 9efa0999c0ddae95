"""One decoder block on top of `ops`: its forward, and its hand-written backward. Pre-norm, grouped-query attention, SwiGLU.

    x₂ = x + o_proj(attention(rope(q), rope(k), v)),  q, k, v = projections of rms_norm(x)
    y  = x₂ + down_proj(silu(gate_proj(n)) ∘ up_proj(n)),  n = rms_norm(x₂)

`adapters` maps a projection's name to its LoRA; a projection without one gets no gradient of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from mesp_core.config import PROJECTIONS
from mesp_core.models.architecture import Architecture
from mesp_core.ops import attention, cross_entropy, frozen_matmul, gated_mlp, lora_linear, rms_norm, rope
from mesp_core.ops.frozen_matmul import FrozenLinear
from mesp_core.ops.lora_linear import LoRA
from mesp_core.ops.rope import Rotation
from mesp_core.weights import Block

MLP = ("gate_proj", "up_proj", "down_proj")
# Intermediate features of an MLP that are taken backward at a time: few, because arrays of tokens × features are held.
QUANTIZED_PART, DEQUANTIZED_PART = 1024, 256

Adapters = Mapping[str, LoRA]
Gradients = dict[str, tuple[mx.array, mx.array]]  # projection -> (∂A, ∂B)


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
    gradients: Gradients = {}

    def linear_backward(g: mx.array, x: mx.array, name: str, h: Mapping[str, mx.array]) -> mx.array:
        dx, pair = lora_linear.backward(g, x, block.linears[name], adapters.get(name), h.get(name))
        if pair is not None:
            gradients[name] = pair
        return dx

    kept = _attention_forward(x, block, adapters, shape, keep_h)
    mx.eval(kept.q, kept.k, kept.v, kept.o, kept.x2, kept.h)

    # MLP
    n = rms_norm.forward(kept.x2, block.norms["post_attention_layernorm"], shape.eps)
    dn = _mlp_backward(g, n, block, adapters, gradients)
    n = None
    g = g + rms_norm.backward(dn, kept.x2, block.norms["post_attention_layernorm"], shape.eps)
    mx.eval(g)
    dn = kept.x2 = None

    # Attention
    o = _join_heads(kept.o)
    do = _split_heads(linear_backward(g, o, "o_proj", kept.h), shape.heads)
    mx.eval(do, gradients.get("o_proj"))
    o = kept.o = None
    dq, dk, dv = attention.backward(do, kept.q, kept.k, kept.v, shape.scale)
    dq, dk = rope.backward(dq, shape.rotation), rope.backward(dk, shape.rotation)
    mx.eval(dq, dk, dv)
    do = kept.q = kept.k = kept.v = None
    n = rms_norm.forward(x, block.norms["input_layernorm"], shape.eps)
    dn = linear_backward(_join_heads(dq), n, "q_proj", kept.h)
    dn = dn + linear_backward(_join_heads(dk), n, "k_proj", kept.h)
    dn = dn + linear_backward(_join_heads(dv), n, "v_proj", kept.h)
    dx = g + rms_norm.backward(dn, x, block.norms["input_layernorm"], shape.eps)
    mx.eval(dx, gradients)
    return dx, gradients


def _attention_forward(x: mx.array, block: Block, adapters: Adapters, shape: BlockShape, keep_h: bool = False) -> Kept:
    h: dict[str, mx.array] = {}
    keep = h if keep_h else None
    n = rms_norm.forward(x, block.norms["input_layernorm"], shape.eps)
    q, k, v = (_linear_forward(n, name, block, adapters, keep) for name in ("q_proj", "k_proj", "v_proj"))
    q = rope.forward(_split_heads(q, shape.heads), shape.rotation)
    k = rope.forward(_split_heads(k, shape.kv_heads), shape.rotation)
    v = _split_heads(v, shape.kv_heads)
    o = attention.forward(q, k, v, shape.scale)
    x2 = x + _linear_forward(_join_heads(o), "o_proj", block, adapters, keep)
    return Kept(q, k, v, o, x2, h)


def _mlp_forward(x2: mx.array, block: Block, adapters: Adapters, shape: BlockShape) -> mx.array:
    n = rms_norm.forward(x2, block.norms["post_attention_layernorm"], shape.eps)
    gate, up = (_linear_forward(n, name, block, adapters) for name in ("gate_proj", "up_proj"))
    return _linear_forward(gated_mlp.forward(gate, up), "down_proj", block, adapters)


def _mlp_backward(g: mx.array, n: mx.array, block: Block, adapters: Adapters, gradients: Gradients) -> mx.array:
    """g = ∂L/∂y, n (B × L × C) -> ∂L/∂n; the three adapters' gradients go into `gradients`.

    The MLP is a sum over parts R of its M intermediate features, y = Σ_R down_R(silu(gate_R(n)) ∘ up_R(n)), so it is
    re-run and taken backward part by part: no (tokens × M) array ever exists, and a part's weights are dequantised once
    for both directions.
    """
    linears = {name: block.linears[name] for name in MLP}
    if any(linear.kernel != "quantized" for linear in linears.values()):
        # One size of part for all three: where one is dequantised all are, in sizes no kernel was checked for.
        linears = {name: replace(linear, kernel="dequantize") for name, linear in linears.items()}
    h = {name: lora_linear.low_rank(n, adapters.get(name)) for name in ("gate_proj", "up_proj")}
    dn = mx.zeros(n.shape, mx.float32)
    parts: dict[str, list[tuple[mx.array, mx.array]]] = {name: [] for name in MLP}
    for start, stop in _feature_parts(linears):
        part = {name: _mlp_part(name, linear, adapters.get(name), start, stop) for name, linear in linears.items()}
        gate, up = (lora_linear.forward(n, *part[name], h[name]) for name in ("gate_proj", "up_proj"))
        sigma = mx.sigmoid(gate)
        da, of_down = lora_linear.backward(g, gated_mlp.forward(gate, up, sigma), *part["down_proj"])
        dgate, dup = gated_mlp.backward(da, gate, up, sigma)
        from_gate, of_gate = lora_linear.backward(dgate, n, *part["gate_proj"], h["gate_proj"])
        from_up, of_up = lora_linear.backward(dup, n, *part["up_proj"], h["up_proj"])
        dn = dn + from_gate + from_up
        for name, pair in (("gate_proj", of_gate), ("up_proj", of_up), ("down_proj", of_down)):
            if pair is not None:
                parts[name].append(pair)
        part = gate = up = sigma = da = dgate = dup = from_gate = from_up = None
        mx.eval(dn, parts)
    for name, pairs in parts.items():
        if pairs:
            all_da, all_db = zip(*pairs, strict=True)
            # A feature is an output of gate and up, a column of their B, and an input of down, a row of its A.
            if name == "down_proj":
                gradients[name] = mx.concatenate(all_da, axis=0), _sum(all_db)
            else:
                gradients[name] = _sum(all_da), mx.concatenate(all_db, axis=1)
    mx.eval(gradients)
    return dn.astype(n.dtype)


def _sum(parts: Sequence[mx.array]) -> mx.array:
    """Of arrays that may be in 16 bits, added in float32."""
    total = parts[0].astype(mx.float32)
    for part in parts[1:]:
        total = total + part
    return total.astype(parts[0].dtype)


def _mlp_part(name: str, linear: FrozenLinear, lora: LoRA | None, start: int, stop: int) -> tuple[FrozenLinear, LoRA | None]:
    """The part of one projection of the MLP that makes (gate, up) or reads (down) the features start…stop-1."""
    if name == "down_proj":
        lora = None if lora is None else replace(lora, a=lora.a[start:stop])
        return frozen_matmul.inputs(linear, start, stop), lora
    lora = None if lora is None else replace(lora, b=lora.b[:, start:stop])
    return frozen_matmul.outputs(linear, start, stop), lora


def used_shapes(name: str, linear: FrozenLinear) -> list[FrozenLinear]:
    """A layer in every shape that the quantised kernel meets it in: an MLP's also in parts, the head in parts only."""
    cut, features, part = frozen_matmul.outputs, linear.out_features, linear.out_features
    if name == "down_proj":
        cut, features, part = frozen_matmul.inputs, linear.in_features, QUANTIZED_PART
    elif name in MLP:
        part = QUANTIZED_PART
    elif name not in PROJECTIONS:
        part = cross_entropy.QUANTIZED_ROWS
    sizes = {min(part, features), features % part} - {0}
    if name in PROJECTIONS:
        sizes.add(features)
    return [cut(replace(linear, kernel="quantized"), 0, size) for size in sorted(sizes)]


def _feature_parts(linears: Mapping[str, FrozenLinear]) -> list[tuple[int, int]]:
    """Ranges of intermediate features, cut between groups of `down`."""
    gate, unit = linears["gate_proj"], linears["down_proj"].group_size or 1
    features = QUANTIZED_PART
    if gate.kernel != "quantized":  # three parts of that size are held in float32
        features = min(DEQUANTIZED_PART, frozen_matmul.BLOCK_ELEMENTS // gate.in_features)
    features = max(unit, features // unit * unit)
    return [(start, min(start + features, gate.out_features)) for start in range(0, gate.out_features, features)]


def _linear_forward(
    x: mx.array, name: str, block: Block, adapters: Adapters, keep: dict[str, mx.array] | None = None
) -> mx.array:
    if keep is not None:
        _keep(x, name, adapters, keep)
    return lora_linear.forward(x, block.linears[name], adapters.get(name), None if keep is None else keep.get(name))


def _keep(x: mx.array, name: str, adapters: Adapters, keep: dict[str, mx.array]) -> None:
    if name in adapters:
        keep[name] = lora_linear.low_rank(x, adapters[name])


def _split_heads(x: mx.array, heads: int) -> mx.array:
    """(B × L × H·D) -> (B × H × L × D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def _join_heads(x: mx.array) -> mx.array:
    """(B × H × L × D) -> (B × L × H·D)."""
    batch, heads, length, dims = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * dims)
