"""One decoder block: pre-norm, grouped-query attention, gated MLP.

    x₂ = x + o_proj(attention(rope(q), rope(k), v)),  q, k, v = projections of rms_norm(x)
    y  = x₂ + down_proj(silu(gate_proj(n)) ∘ up_proj(n)),  n = rms_norm(x₂)

Its halves are in attention.py and mlp.py. `adapters` maps a projection's name to its LoRA; a projection without one gets no
gradient of its own.
"""

from collections.abc import Sequence

import mlx.core as mx

from mesp_core.device.evaluation import piece
from mesp_core.engine import attention, mlp
from mesp_core.engine.attention import Attended
from mesp_core.engine.gradient_sums import Adapters, Gradients, GradientSums
from mesp_core.engine.mlp import NOTHING_KEPT, Activations
from mesp_core.engine.pace import WHOLE, Pace
from mesp_core.engine.shape import BlockShape
from mesp_core.ops import rms_norm
from mesp_core.weights.weights import Block


def forward(x: mx.array, block: Block, adapters: Adapters, shape: BlockShape) -> mx.array:
    """x (B × L × C) -> y (B × L × C), in one graph of which nothing is evaluated."""
    x2 = attention.forward(x, block, adapters, shape, WHOLE).x2
    n = rms_norm.forward(x2, block.norms[shape.mlp_norm], shape.eps)
    return (x2 + mlp.whole(n, block.linears, adapters)).reshape(x.shape)


def backward(
    taken: list[mx.array],
    attended: Attended,
    block: Block,
    adapters: Adapters,
    shape: BlockShape,
    pace: Pace,
    part_elements: int,
    activations: list[Activations] | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[mx.array, Gradients]:
    """[x, ∂L/∂y], emptied, and what attention's forward left -> ∂L/∂x (B × L × C) and the adapters' gradients, evaluated.

    `activations`: one in a list, which is emptied, where the MLP's forward kept some. `part_elements` as in mlp.py. The
    block's own output is never computed again: no gradient depends on it.
    """
    g, x = taken.pop(), taken.pop()
    kept = activations.pop() if activations else NOTHING_KEPT
    width, sums = x.shape[-1], GradientSums()
    g = g.reshape(-1, width)
    x2, attended.x2 = attended.x2.reshape(-1, width), None

    def through_mlp(rows: slice) -> tuple[mx.array]:
        weight = block.norms[shape.mlp_norm]
        n = mlp.operand(pace.norm(x2[rows], weight, shape.eps), block.linears)
        of_rows = mlp.operand(g[rows], block.linears)
        dn = mlp.backward(of_rows, n, block.linears, adapters, sums, part_elements, kept, rows)
        n = of_rows = None
        return (pace.norm_backward(dn, x2[rows], weight, shape.eps, g[rows]),)

    (g,) = pace.rowwise(len(g), through_mlp)
    piece(g)
    x2 = kept = None
    dx = attention.backward(g, x, attended, block, adapters, sums, shape, pace, lengths)
    return dx.reshape(x.shape), sums.take(adapters)
