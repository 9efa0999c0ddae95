"""MeBP (Song & Tang, arXiv 2510.03425): keep each block's input; re-run the block and differentiate it automatically."""

import mlx.core as mx

from mesp_core.device.evaluation import piece
from mesp_core.engine import block as decoder_block
from mesp_core.engine.gradient_sums import Adapters, Gradients
from mesp_core.engine.shape import BlockShape
from mesp_core.ops.lora_linear import LoRA
from mesp_core.weights.weights import Block


def block_backward(taken: list[mx.array], block: Block, adapters: Adapters, shape: BlockShape) -> tuple[mx.array, Gradients]:
    """[x, ∂L/∂y], emptied -> ∂L/∂x and the adapters' gradients, evaluated; by one vector-Jacobian product."""
    g, x = taken.pop(), taken.pop()
    names, block = list(adapters), block.traced()

    def run(x: mx.array, *arrays: mx.array) -> mx.array:
        loras = {name: LoRA(a, b, adapters[name].scale) for name, a, b in zip(names, arrays[::2], arrays[1::2], strict=True)}
        return decoder_block.forward(x, block, loras, shape)

    arrays = [array for name in names for array in (adapters[name].a, adapters[name].b)]
    dx, *gradients = mx.vjp(run, [x, *arrays], [g])[1]  # the primal output would keep the activations alive
    piece(dx, gradients)
    return dx, dict(zip(names, zip(gradients[::2], gradients[1::2], strict=True), strict=True))
