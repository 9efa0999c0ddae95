"""The engine that `mebp`, `mesp` and `mesp-store-h` share: forward keeping each block's input, loss, blocks backward.

Same ops, same weights, same order; the methods differ only in the function that takes one block backward.
"""

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from mesp_core.config import PROJECTIONS
from mesp_core.data.batches import Batch
from mesp_core.methods import block as decoder_block
from mesp_core.methods.block import Adapters, BlockShape, Gradients
from mesp_core.methods.method import AdapterTree, EnterPhase
from mesp_core.models.architecture import projection_path
from mesp_core.ops import cross_entropy, rms_norm
from mesp_core.ops.lora_linear import LoRA
from mesp_core.weights import Block, Weights


class BlockBackward(Protocol):
    """Takes one block backward: (∂L/∂y, x, weights, adapters, shape) -> (∂L/∂x, adapter gradients), evaluated."""

    def __call__(
        self, g: mx.array, x: mx.array, block: Block, adapters: Adapters, shape: BlockShape
    ) -> tuple[mx.array, Gradients]: ...


class Blockwise:
    """A training method that works through the model block by block.

    `scale` is the adapters' alpha / rank.
    """

    def __init__(self, weights: Weights, scale: float, block_backward: BlockBackward) -> None:
        self.weights, self.scale, self.block_backward = weights, scale, block_backward
        self.shape = BlockShape.of(weights.checkpoint.architecture)
        self.layers = weights.checkpoint.architecture.num_hidden_layers

    def loss_and_gradients(
        self, adapters: AdapterTree, batch: Batch, weight: float, enter: EnterPhase = lambda phase: None
    ) -> tuple[mx.array, AdapterTree]:
        """Σ loss over the batch's labels (a scalar), and the gradients of weight·Σ loss by module path.

        `enter` is told when each of the phases forward, loss and backward begins.
        """
        enter("forward")
        x = self.weights.embed(batch.inputs)
        inputs = []
        for layer in range(self.layers):
            inputs.append(x)
            x = decoder_block.forward(x, self.weights.block(layer), self._of_layer(adapters, layer), self.shape)
            mx.eval(x)

        enter("loss")
        loss, g = self._loss(x, batch)
        x = None

        enter("backward")
        gradients: AdapterTree = {}
        for layer in reversed(range(self.layers)):
            g, of_layer = self.block_backward(
                g, inputs.pop(), self.weights.block(layer), self._of_layer(adapters, layer), self.shape
            )
            # Only now: g times 1/tokens would be below float16's smallest numbers.
            for name, (da, db) in of_layer.items():
                gradients[projection_path(layer, name)] = {"lora_a": weight * da, "lora_b": weight * db}
            of_layer = da = db = None
            mx.eval(gradients)
        return loss, gradients

    def logits(self, adapters: AdapterTree, ids) -> mx.array:  # noqa: ANN001 (a numpy array)
        """ids (B × L) -> next-token logits (B × L × vocab) in float32, for checking an adapter against its model."""
        x = self.weights.embed(ids)
        for layer in range(self.layers):
            x = decoder_block.forward(x, self.weights.block(layer), self._of_layer(adapters, layer), self.shape)
            mx.eval(x)
        n = rms_norm.forward(x, self.weights.final_norm(), self.shape.eps)
        return cross_entropy.logits(n, self.weights.head())

    def _loss(self, x: mx.array, batch: Batch) -> tuple[mx.array, mx.array]:
        """x, the last block's output -> (Σ loss, ∂Σ loss/∂x), through the final norm and the head."""
        norm = self.weights.final_norm()
        n = rms_norm.forward(x, norm, self.shape.eps)
        loss, dn = cross_entropy.forward_backward(n, batch.labels, self.weights.head())
        n = None
        g = rms_norm.backward(dn, x, norm, self.shape.eps)
        mx.eval(g)
        return loss, g

    def _of_layer(self, adapters: Mapping[str, Mapping[str, mx.array]], layer: int) -> Adapters:
        """One block's adapters by projection name."""
        found = {}
        for name in PROJECTIONS:
            pair = adapters.get(projection_path(layer, name))
            if pair is not None:
                found[name] = LoRA(pair["lora_a"], pair["lora_b"], self.scale)
        return found
