"""What every training method is, and who hears what it finds."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from mesp_core.data.batches import Batch

# module path -> {"lora_a": …, "lora_b": …}: adapters and, in the same shape, their gradients
AdapterTree = dict[str, dict[str, mx.array]]
EnterPhase = Callable[[str], None]


class Receiver(Protocol):
    """Hears what the work on a batch gives, while it is going on."""

    def enter(self, phase: str) -> None:
        """A phase of the work begins: forward, loss, backward; or all, where they are one."""
        ...

    def loss(self, loss: mx.array) -> None:
        """Σ loss over the batch's labels: a scalar, evaluated, said once and before any gradient."""
        ...

    def gradients(self, part: AdapterTree) -> None:
        """Evaluated gradients of weight·Σ loss of some adapters; every module path comes in one part.

        The part is handed over, arrays and dictionary, and so are the adapters it is for: the receiver may empty the one
        and change the others at once. Who keeps no reference of its own to either lets their memory be used again.
        """
        ...


class Method(ABC):
    """Gives the gradients of one batch, as soon as they are there.

    Attributes:
        borrowed_bytes: of mapped files; the allocator counts them, though the process does not hold them.
    """

    borrowed_bytes: int = 0

    @abstractmethod
    def backpropagate(self, adapters: AdapterTree, batch: Batch, weight: float, to: Receiver) -> None:
        """Tell `to` of Σ loss over the batch's labels and of the gradients of weight·Σ loss, part by part."""

    def loss_and_gradients(
        self, adapters: AdapterTree, batch: Batch, weight: float, enter: EnterPhase = lambda phase: None
    ) -> tuple[mx.array, AdapterTree]:
        """Σ loss over the batch's labels (a scalar), and the gradients of weight·Σ loss by module path, all together.

        `enter` is told when each phase of the work begins.
        """
        collected = _Collected(enter)
        self.backpropagate(adapters, batch, weight, collected)
        return collected.total, collected.tree

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back what outlives a batch: files, patches. The method is not used afterwards."""


class _Collected:
    """A receiver that keeps everything and changes nothing."""

    total: mx.array

    def __init__(self, enter: EnterPhase) -> None:
        self.tree: AdapterTree = {}
        self._enter = enter

    def enter(self, phase: str) -> None:
        self._enter(phase)

    def loss(self, loss: mx.array) -> None:
        self.total = loss

    def gradients(self, part: AdapterTree) -> None:
        self.tree.update(part)
