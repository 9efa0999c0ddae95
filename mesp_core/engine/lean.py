"""lean: as mesp, and nothing larger than it must be ever exists.

Of a block only its input is kept, and what `Keep` names where memory is to be had for time. Weights are read row block by
row block, attention goes tile by tile, the MLP by ranges of its features, all of it over so many tokens at a time. What is
left are arrays of (tokens × hidden), a handful, and each line below knows which are alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mesp_core.engine import mlp, norm
from mesp_core.engine.block import BlockShape, join_heads, split_heads
from mesp_core.engine.gradient_sums import Adapters, Gradients, GradientSums
from mesp_core.engine.mlp import Activations
from mesp_core.engine.rowwise import rowwise
from mesp_core.lifetimes.keep import ATTENTION, Keep
from mesp_core.ops import attention, lora_linear, rms_norm, rope
from mesp_core.weights.weights import Block

QKV = ("q_proj", "k_proj", "v_proj")


@dataclass
class Attended:
    """What attention leaves for the backward: q, k (turned), v, o per head (B × H × L × D), the scores' lse, x₂ (T × C)."""

    q: mx.array | None
    k: mx.array | None
    v: mx.array | None
    o: mx.array | None
    lse: mx.array | None
    x2: mx.array | None


class Lean:
    """The passes through one block; what is kept of a forward waits here for its backward."""

    lazy = True

    def __init__(self, shape: BlockShape, keep: Keep) -> None:
        self.shape, self.keep = shape, keep
        self._attended: dict[int, Attended] = {}
        self._activations: dict[int, Activations] = {}

    def forget(self) -> None:
        """Drop what a step that broke off has left."""
        self._attended.clear()
        self._activations.clear()

    def forward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> mx.array:
        """[x] (B × L × C), emptied, so that the caller does not keep x alive -> y (B × L × C)."""
        x = taken.pop()
        shape, tokens = x.shape, x.shape[0] * x.shape[1]
        attended = self._attend(x, block, adapters, lengths)
        x = None
        x2 = attended.x2
        if self.keep.keeps(layer, ATTENTION):
            self._attended[layer] = attended
        attended = None
        features = block.linears["gate_proj"].out_features
        activations = Activations(self.keep.activations(layer), tokens, features, x2.dtype)
        self._activations[layer] = activations

        def rows_of_y(rows: slice) -> tuple[mx.array]:
            n = mlp.operand(_norm(x2[rows], block, "post_attention_layernorm", self.shape), block.linears)
            y = mlp.forward(n, block.linears, adapters, self.keep.part_elements, activations, rows)
            return (x2[rows] + y.astype(x2.dtype),)

        (y,) = rowwise(tokens, rows_of_y)
        return y.reshape(shape)

    def backward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> tuple[mx.array, Gradients]:
        """[x, ∂L/∂y], emptied -> ∂L/∂x (B × L × C), the adapters' gradients."""
        g, x = taken.pop(), taken.pop()
        (batch, length, width), sums = x.shape, GradientSums()
        tokens = batch * length
        attended = self._attended.pop(layer, None) or self._attend(x, block, adapters, lengths)
        activations = self._activations.pop(layer)
        x, g = x.reshape(tokens, width), g.reshape(tokens, width)
        x2, attended.x2 = attended.x2, None

        def through_mlp(rows: slice) -> tuple[mx.array]:
            n = mlp.operand(_norm(x2[rows], block, "post_attention_layernorm", self.shape), block.linears)
            of_rows = mlp.operand(g[rows], block.linears)
            dn = mlp.backward(of_rows, n, block.linears, adapters, sums, self.keep.part_elements, activations, rows)
            n = of_rows = None
            return (norm.backward(dn, x2[rows], block.norms["post_attention_layernorm"], self.shape.eps, g[rows]),)

        (g,) = rowwise(tokens, through_mlp)
        x2 = activations = None

        o, attended.o = join_heads(attended.o).reshape(tokens, -1), None
        (do,) = rowwise(tokens, lambda rows: (_linear_backward(g[rows], o[rows], "o_proj", block, adapters, sums),))
        do, o = (split_heads(part.reshape(batch, length, -1), self.shape.heads) for part in (do, o))
        q, k, v, lse = attended.q, attended.k, attended.v, attended.lse
        attended = None
        dq, dk, dv = attention.tiled_backward(do, q, k, v, o, lse, self.shape.scale, lengths)
        mx.eval(dq, dk, dv)
        do = o = q = k = v = lse = None
        dq, dk = rope.backward(dq, self.shape.rotation), rope.backward(dk, self.shape.rotation)
        dq, dk, dv = (join_heads(part).reshape(tokens, -1) for part in (dq, dk, dv))
        mx.eval(dq, dk, dv)

        def through_projections(rows: slice) -> tuple[mx.array]:
            n = _norm(x[rows], block, "input_layernorm", self.shape)
            dn = None
            for name, part in zip(QKV, (dq, dk, dv), strict=True):
                more = _linear_backward(part[rows], n, name, block, adapters, sums)
                dn = more if dn is None else dn + more
                mx.eval(dn)
            n = more = None
            return (norm.backward(dn, x[rows], block.norms["input_layernorm"], self.shape.eps, g[rows]),)

        (dx,) = rowwise(tokens, through_projections)
        x = g = dq = dk = dv = None
        return dx.reshape(batch, length, width), sums.take(adapters)

    def _attend(self, x: mx.array, block: Block, adapters: Adapters, lengths: Sequence[int] | None) -> Attended:
        """x (B × L × C) -> attention's part of the block, evaluated."""
        batch, length, width = x.shape
        x = x.reshape(-1, width)

        def project(rows: slice) -> tuple[mx.array, ...]:
            n = _norm(x[rows], block, "input_layernorm", self.shape)
            return tuple(_linear(n, name, block, adapters) for name in QKV)

        q, k, v = (part.reshape(batch, length, -1) for part in rowwise(batch * length, project))
        q = rope.forward(split_heads(q, self.shape.heads), self.shape.rotation)
        mx.eval(q)
        k = rope.forward(split_heads(k, self.shape.kv_heads), self.shape.rotation)
        v = split_heads(v, self.shape.kv_heads)
        mx.eval(k, v)
        o, lse = attention.tiled_forward(q, k, v, self.shape.scale, lengths)
        o = join_heads(o)  # the same memory; what is kept per head is a view of it
        mx.eval(o)
        flat = o.reshape(batch * length, -1)
        (x2,) = rowwise(batch * length, lambda rows: (x[rows] + _linear(flat[rows], "o_proj", block, adapters),))
        return Attended(q, k, v, split_heads(o, self.shape.heads), lse, x2)


def _norm(x: mx.array, block: Block, name: str, shape: BlockShape) -> mx.array:
    n = rms_norm.forward(x, block.norms[name], shape.eps)
    mx.eval(n)  # now: what it is made of would be there beside what it goes into
    return n


def _linear(x: mx.array, name: str, block: Block, adapters: Adapters) -> mx.array:
    y = lora_linear.forward(x, block.linears[name], lora_linear.in_float32(adapters.get(name)))
    mx.eval(y)
    return y


def _linear_backward(g: mx.array, x: mx.array, name: str, block: Block, adapters: Adapters, sums: GradientSums) -> mx.array:
    dx, pair = lora_linear.backward(g, x, block.linears[name], lora_linear.in_float32(adapters.get(name)))
    mx.eval(dx)
    sums.add(name, pair)
    return dx
