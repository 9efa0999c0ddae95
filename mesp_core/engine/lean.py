"""lean: as mesp, and nothing larger than it must be ever exists.

Of a block only its input is kept, and what `Keep` names where memory is to be had for time. Weights are read row block by
row block, attention goes tile by tile, the MLP by ranges of its features, all of it over so many tokens at a time. What is
left are arrays of (tokens × hidden), a handful.
"""

from collections.abc import Sequence

import mlx.core as mx

from mesp_core.engine import attention, mlp
from mesp_core.engine import block as decoder_block
from mesp_core.engine.attention import Attended
from mesp_core.engine.gradient_sums import Adapters, Gradients
from mesp_core.engine.mlp import Activations
from mesp_core.engine.pace import ROWS
from mesp_core.engine.shape import BlockShape
from mesp_core.lifetimes.keep import ATTENTION, Keep
from mesp_core.weights.weights import Block


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
        attended = attention.forward(x, block, adapters, self.shape, ROWS, lengths)
        x = None
        x2 = attended.x2
        if self.keep.keeps(layer, ATTENTION):
            self._attended[layer] = attended
        attended = None
        activations = Activations(self.keep.activations(layer), x2.dtype)
        self._activations[layer] = activations

        def rows_of_y(rows: slice) -> tuple[mx.array]:
            n = mlp.operand(ROWS.norm(x2[rows], block.norms[self.shape.mlp_norm], self.shape.eps), block.linears)
            y = mlp.forward(n, block.linears, adapters, self.keep.part_elements, activations, rows)
            return (x2[rows] + y.astype(x2.dtype),)

        (y,) = ROWS.rowwise(tokens, rows_of_y)
        return y.reshape(shape)

    def backward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> tuple[mx.array, Gradients]:
        """[x, ∂L/∂y], emptied -> ∂L/∂x (B × L × C), the adapters' gradients."""
        attended = self._attended.pop(layer, None)
        if attended is None:
            attended = attention.forward(taken[0], block, adapters, self.shape, ROWS, lengths)
        activations = [self._activations.pop(layer)]
        part_elements = self.keep.part_elements
        return decoder_block.backward(
            taken, attended, block, adapters, self.shape, ROWS, part_elements, activations, lengths
        )
