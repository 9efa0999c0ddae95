"""The engine that all methods but autodiff share: forward keeping each block's input, loss, blocks backward.

Same ops, same weights, same order; the methods differ in the passes through one block.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from mesp_core.data.batches import Batch
from mesp_core.device.evaluation import piece
from mesp_core.engine.block_inputs import BlockInputs, InMemory
from mesp_core.engine.gradient_sums import Adapters, Gradients
from mesp_core.engine.method import AdapterTree, Method, Receiver
from mesp_core.engine.token_loss import loss_and_gradient
from mesp_core.models.architecture import PROJECTIONS, projection_path
from mesp_core.ops import cross_entropy, rms_norm
from mesp_core.ops.lora_linear import LoRA
from mesp_core.weights.weights import Block, Weights


class Passes(Protocol):
    """The two ways through one block. `taken` is emptied, so that the caller keeps nothing alive that is not needed."""

    lazy: bool  # whether a block's weights are read part by part, instead of as a whole

    def forward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> mx.array:
        """[x] -> y, (B × L × C) each."""

    def backward(
        self, layer: int, taken: list[mx.array], block: Block, adapters: Adapters, lengths: Sequence[int] | None
    ) -> tuple[mx.array, Gradients]:
        """[x, ∂L/∂y] -> ∂L/∂x and the adapters' gradients, evaluated."""

    def forget(self) -> None:
        """Drop whatever a step that broke off has left."""


class Blockwise(Method):
    """A training method that works through the model block by block.

    `scale` is the adapters' alpha / rank; `inputs`: where block inputs stand (None: in memory); `full_loss`: see token_loss.
    """

    def __init__(
        self,
        weights: Weights,
        scale: float,
        passes: Passes,
        inputs: BlockInputs | None = None,
        full_loss: bool = False,
    ) -> None:
        self.weights, self.scale, self.passes = weights, scale, passes
        self.inputs = InMemory() if inputs is None else inputs
        self._block = weights.lazy_block if passes.lazy else weights.block
        self._full_loss, self.borrowed_bytes = full_loss, weights.mapped_bytes
        architecture = weights.checkpoint.architecture
        self.layers, self._eps = architecture.num_hidden_layers, architecture.rms_norm_eps

    def backpropagate(self, adapters: AdapterTree, batch: Batch, weight: float, to: Receiver) -> None:
        """One batch forward and backward; `to` hears of the phases forward, loss and backward, and gets what they give."""
        self.inputs.clear()
        self.passes.forget()
        lengths = batch.lengths if len(batch.inputs) > 1 else None
        to.enter("forward")
        taken = [self.weights.embed(batch.inputs)]
        piece(taken)
        for layer in range(self.layers):
            self.inputs.push(taken[0])
            taken.append(self.passes.forward(layer, taken, self._block(layer), self._of_layer(adapters, layer), lengths))
            piece(taken)

        to.enter("loss")
        norm, head = self.weights.final_norm(), self.weights.head()
        loss, g = loss_and_gradient(taken.pop(), batch.labels, norm, self._eps, head, self._full_loss)
        norm = head = None
        to.loss(loss)

        to.enter("backward")
        for layer in reversed(range(self.layers)):
            taken += [self.inputs.pop(), g]
            g = None
            g, found = self.passes.backward(layer, taken, self._block(layer), self._of_layer(adapters, layer), lengths)
            # Only now: g times 1/tokens would be below float16's smallest numbers.
            part: AdapterTree = {}
            while found:
                name, (da, db) = found.popitem()
                part[projection_path(layer, name)] = {"lora_a": weight * da, "lora_b": weight * db}
            da = db = None
            piece(part)
            to.gradients(part)
            part = None

    def logits(self, adapters: AdapterTree, ids: np.ndarray) -> mx.array:
        """ids (B × L) -> next-token logits (B × L × vocab) in float32, for checking an adapter against its model."""
        x = self.weights.embed(ids)
        for layer in range(self.layers):
            x = self.passes.forward(layer, [x], self._block(layer), self._of_layer(adapters, layer), None)
            piece(x)
        self.passes.forget()
        n = rms_norm.forward(x, self.weights.final_norm(), self._eps)
        return cross_entropy.logits(n, self.weights.head())

    def close(self) -> None:
        """Give up the scratch file, if there is one."""
        self.inputs.close()

    def _of_layer(self, adapters: Mapping[str, Mapping[str, mx.array]], layer: int) -> Adapters:
        """One block's adapters by projection name."""
        found = {}
        for name in PROJECTIONS:
            pair = adapters.get(projection_path(layer, name))
            if pair is not None:
                found[name] = LoRA(pair["lora_a"], pair["lora_b"], self.scale)
        return found
