"""What `mebp` and `mesp` have in common: of a block only its input is kept, and its backward runs the whole block again."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from mesp_core.engine import block as decoder_block
from mesp_core.engine.gradient_sums import Adapters, Gradients
from mesp_core.engine.shape import BlockShape
from mesp_core.weights.weights import Block

# ([x, ∂L/∂y], emptied, weights, adapters, shape) -> (∂L/∂x, adapter gradients), evaluated
BlockBackward = Callable[[list[mx.array], Block, Adapters, BlockShape], tuple[mx.array, Gradients]]


class Rerun:
    """The passes through one block. Padding is computed like everything else; the causal mask hides it."""

    lazy = False

    def __init__(self, shape: BlockShape, backward: BlockBackward) -> None:
        self._shape, self._backward = shape, backward

    def forward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> mx.array:
        """[x] -> y."""
        return decoder_block.forward(taken.pop(), block, adapters, self._shape)

    def backward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> tuple[mx.array, Gradients]:
        """[x, ∂L/∂y] -> ∂L/∂x, the adapters' gradients."""
        return self._backward(taken, block, adapters, self._shape)

    def forget(self) -> None:
        """Nothing is kept."""
