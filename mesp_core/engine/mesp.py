"""MeSP (Park et al., arXiv 2602.13069): keep each block's input; re-run the block, hand-written backward.

h = xA is recomputed where the backward needs it, or kept from the re-run (the paper's table 5).
"""

import mlx.core as mx

from mesp_core.device.evaluation import piece
from mesp_core.engine import attention
from mesp_core.engine import block as decoder_block
from mesp_core.engine.gradient_sums import Adapters, Gradients
from mesp_core.engine.pace import WHOLE
from mesp_core.engine.shape import BlockShape
from mesp_core.ops import pieces
from mesp_core.weights.weights import Block


def block_backward(
    taken: list[mx.array], block: Block, adapters: Adapters, shape: BlockShape, keep_h: bool = False
) -> tuple[mx.array, Gradients]:
    """[x, ∂L/∂y], emptied -> ∂L/∂x and the adapters' gradients, evaluated; the block's attention is re-run here."""
    part_elements = pieces.mesp_part_elements(taken[0].shape[-1])
    attended = attention.forward(taken[0], block, adapters, shape, WHOLE, keep_h=keep_h)
    piece(attended.q, attended.k, attended.v, attended.o, attended.x2, attended.h)
    return decoder_block.backward(taken, attended, block, adapters, shape, WHOLE, part_elements)
