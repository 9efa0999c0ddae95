"""The peer and judge: mlx-lm's own model and LoRA layers under one `value_and_grad`, as `mlx_lm.lora` trains.

Only here is mlx_lm used. Nothing of `ops/` is used, so that agreement with it means something.
"""

import math
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from mesp_core.data.batches import Batch
from mesp_core.device.evaluation import needed
from mesp_core.engine.method import AdapterTree, Method, Receiver
from mesp_core.engine.peer import dequantize_model, grad_checkpoint, linear_to_lora_layers, load_model


class Autodiff(Method):
    """mlx-lm's model in `dtype` with adapters on the modules that an adapter tree names.

    `checkpointing` switches mlx-lm's gradient checkpointing on. It patches the block's class, so `close` undoes it.
    `dequantize` turns the frozen matrices into `dtype` first: the same numbers, several times the memory, and products
    whose rounding is a float32 GEMM's (see bench/gradient_check.py). `within`: the dtype to compute with these numbers in,
    if another.
    """

    def __init__(
        self,
        folder: Path,
        adapters: AdapterTree,
        scale: float,
        dtype: mx.Dtype,
        checkpointing: bool = False,
        dequantize: bool = False,
        within: mx.Dtype | None = None,
    ) -> None:
        self.model, _ = load_model(folder, lazy=True, trust_remote_code=False)
        self.model.set_dtype(dtype)
        if dequantize:
            self.model = dequantize_model(self.model)
        if within is not None:
            self.model.set_dtype(within)
            norms = {name: module for name, module in self.model.named_modules() if isinstance(module, nn.RMSNorm)}
            self.model.update_modules(tree_unflatten([(name, _Norm(norm)) for name, norm in norms.items()]))
        self.model.freeze()
        keys = sorted({path.split(".", 3)[3] for path in adapters})
        rank = next(iter(adapters.values()))["lora_a"].shape[1]
        linear_to_lora_layers(
            self.model, len(self.model.layers), {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys}
        )
        needed(self.model.parameters())
        self._block_class = type(self.model.layers[0])
        self._block_call = self._block_class.__call__
        if checkpointing:
            grad_checkpoint(self.model.layers[0])
        self._value_and_grad = nn.value_and_grad(self.model, self._loss)

    def close(self) -> None:
        """Undo the patch of the block's class."""
        self._block_class.__call__ = self._block_call

    def backpropagate(self, adapters: AdapterTree, batch: Batch, weight: float, to: Receiver) -> None:
        """One phase, `all`, and one part with every gradient."""
        to.enter("all")
        self._put(adapters)
        loss, tree = self._value_and_grad(mx.array(batch.inputs), mx.array(batch.labels), weight)
        loss = loss / weight
        needed(loss, tree)
        to.loss(loss)
        gradients: AdapterTree = {path: {} for path in adapters}
        for name, gradient in tree_flatten(tree):
            path, part = name.rsplit(".", 1)
            gradients[path][part] = gradient
        tree = gradient = None
        to.gradients(gradients)
        self._put(adapters)  # which may be others by now, and the old ones are not to be held

    def _put(self, adapters: AdapterTree) -> None:
        """Make the adapters the model's own."""
        flat = [(f"{path}.{part}", array) for path, pair in adapters.items() for part, array in pair.items()]
        self.model.update(tree_unflatten(flat))

    def _loss(self, inputs: mx.array, labels: mx.array, weight: float) -> mx.array:
        logits, targets = self.model(inputs), mx.maximum(labels, 0)
        picked = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
        losses = _logsumexp(logits) - picked
        losses = losses * (labels >= 0)
        return weight * losses.astype(mx.float64 if losses.dtype == mx.float64 else mx.float32).sum()


class _Norm(nn.Module):
    """nn.RMSNorm in its input's dtype: MLX's own computes in float32, whatever it is given."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def __call__(self, x: mx.array) -> mx.array:
        """x (… × C) -> n (… × C)."""
        return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.weight


def _logsumexp(logits: mx.array) -> mx.array:
    """Over the last axis, in two levels.

    mx.logsumexp adds up a whole row in one float32 sum, in which the tail of a peaked distribution is lost: 3e-4 too
    little on SmolLM2's 49,152 logits (measured against float64), and a gradient 3e-4 off. Two levels: 4e-6.
    """
    width = logits.shape[-1]
    inner = max(n for n in range(1, math.isqrt(width) + 1) if width % n == 0)
    return mx.logsumexp(mx.logsumexp(logits.reshape(*logits.shape[:-1], width // inner, inner), axis=-1), axis=-1)
