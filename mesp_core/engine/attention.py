"""The attention half of a block, for every method: x₂ = x + o_proj(attention(rope(q), rope(k), v)).

q, k and v are projections of rms_norm(x). Forward and backward stand side by side here and go at either pace: scores are
whole rows of probabilities in `WHOLE`, one tile of them in `ROWS`. Each line below knows which arrays are alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mesp_core.device.evaluation import piece, settle
from mesp_core.engine.gradient_sums import Adapters, GradientSums
from mesp_core.engine.pace import H, Pace
from mesp_core.engine.shape import BlockShape
from mesp_core.ops import attention, rope
from mesp_core.weights.weights import Block

QKV = ("q_proj", "k_proj", "v_proj")


@dataclass
class Attended:
    """What attention leaves for the backward, which empties it.

    q, k (turned), v, o: per head, (B × H × L × D). lse: of the scores, where they were tiled. x2: (T × C) or x's shape,
    attention's result. h: of each projection, if it was asked for.
    """

    q: mx.array | None
    k: mx.array | None
    v: mx.array | None
    o: mx.array | None
    lse: mx.array | None
    x2: mx.array | None
    h: H = field(default_factory=dict)


def forward(
    x: mx.array,
    block: Block,
    adapters: Adapters,
    shape: BlockShape,
    pace: Pace,
    lengths: Sequence[int] | None = None,
    keep_h: bool = False,
) -> Attended:
    """x (B × L × C) -> attention's result and what its backward needs; evaluated at the pace `ROWS`.

    `lengths`: the tokens of each sample, which tiled scores do not go beyond. `keep_h`: at the pace `WHOLE` only.
    """
    batch, length, _ = x.shape
    tokens = batch * length
    x, h = pace.flat(x), {}
    keep = h if keep_h else None

    def project(rows: slice) -> tuple[mx.array, ...]:
        n = pace.norm(x[rows], block.norms[shape.attention_norm], shape.eps)
        return tuple(pace.linear(n, name, block, adapters, keep) for name in QKV)

    q, k, v = (part.reshape(batch, length, -1) for part in pace.rowwise(tokens, project))
    q = rope.forward(split_heads(q, shape.heads), shape.rotation)
    pace.settle(q)
    k, v = rope.forward(split_heads(k, shape.kv_heads), shape.rotation), split_heads(v, shape.kv_heads)
    pace.settle(k, v)
    if pace.by_rows:
        o, lse = attention.tiled_forward(q, k, v, shape.scale, lengths, tile_elements=pace.tile_elements)
    else:
        o, lse = attention.forward(q, k, v, shape.scale), None
    o = pace.flat(join_heads(o))  # what is kept per head is a view of it
    pace.settle(o)
    (x2,) = pace.rowwise(tokens, lambda rows: (x[rows] + pace.linear(o[rows], "o_proj", block, adapters, keep),))
    return Attended(q, k, v, split_heads(o.reshape(batch, length, -1), shape.heads), lse, x2, h)


def backward(
    g: mx.array,
    x: mx.array,
    attended: Attended,
    block: Block,
    adapters: Adapters,
    sums: GradientSums,
    shape: BlockShape,
    pace: Pace,
    lengths: Sequence[int] | None = None,
) -> mx.array:
    """g = ∂L/∂x₂, x (B × L × C) -> ∂L/∂x (T × C), evaluated; the adapters' gradients go into `sums`.

    Each stage is evaluated before the next begins, so that what it no longer needs is gone by then.
    """
    batch, length, width = x.shape
    tokens = batch * length
    x, g = x.reshape(tokens, width), g.reshape(tokens, width)

    o, attended.o = join_heads(attended.o).reshape(tokens, -1), None
    h = attended.h.get("o_proj")
    (do,) = pace.rowwise(tokens, lambda rows: (pace.linear_backward(g[rows], o[rows], "o_proj", block, adapters, sums, h),))
    piece(do)
    h = None
    do, o = (split_heads(part.reshape(batch, length, -1), shape.heads) for part in (do, o))
    q, k, v, lse = attended.q, attended.k, attended.v, attended.lse
    attended.q = attended.k = attended.v = attended.lse = None
    if lse is None:
        o = None  # whole rows of probabilities need no o
        dq, dk, dv = attention.backward(do, q, k, v, shape.scale)
    else:
        taken = [do, q, k, v, o, lse]
        do = o = q = k = v = lse = None
        dq, dk, dv = attention.tiled_backward(taken, shape.scale, lengths, tile_elements=pace.tile_elements)
    settle(dq, dk, dv)
    do = o = q = k = v = lse = None
    dq, dk = rope.backward(dq, shape.rotation), rope.backward(dk, shape.rotation)
    dq, dk, dv = (join_heads(part).reshape(tokens, -1) for part in (dq, dk, dv))
    piece(dq, dk, dv)

    def through_projections(rows: slice) -> tuple[mx.array]:
        weight = block.norms[shape.attention_norm]
        n = pace.norm(x[rows], weight, shape.eps)
        dn = None
        for name, part in zip(QKV, (dq, dk, dv), strict=True):
            more = pace.linear_backward(part[rows], n, name, block, adapters, sums, attended.h.get(name))
            dn = more if dn is None else dn + more
            pace.settle(dn)
        n = more = None
        return (pace.norm_backward(dn, x[rows], weight, shape.eps, g[rows]),)

    (dx,) = pace.rowwise(tokens, through_projections)
    piece(dx)
    return dx


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(B × L × H·D) -> (B × H × L × D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def join_heads(x: mx.array) -> mx.array:
    """(B × H × L × D) -> (B × L × H·D)."""
    batch, heads, length, dims = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * dims)
