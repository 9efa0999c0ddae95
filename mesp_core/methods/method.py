"""What every training method is."""

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from mesp_core.data.batches import Batch

# module path -> {"lora_a": …, "lora_b": …}: adapters and, in the same shape, their gradients
AdapterTree = dict[str, dict[str, mx.array]]
EnterPhase = Callable[[str], None]


class Method(Protocol):
    """Gives the gradients of one batch."""

    def loss_and_gradients(
        self, adapters: AdapterTree, batch: Batch, weight: float, enter: EnterPhase
    ) -> tuple[mx.array, AdapterTree]:
        """Σ loss over the batch's labels (a scalar), and the gradients of weight·Σ loss by module path.

        `enter` is told when each phase of the work begins.
        """
        ...
