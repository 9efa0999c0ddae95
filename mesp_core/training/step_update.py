"""What becomes of a step's losses and gradients: the adapters are updated as early as the configuration lets them be."""

import math

import mlx.core as mx

from mesp_core.device.evaluation import needed, piece
from mesp_core.engine.method import AdapterTree, EnterPhase
from mesp_core.errors import NotFiniteError
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.partial_update import PartialUpdate
from mesp_core.training.undo import Undo


class StepUpdate:
    """Receives the micro-batches of one step.

    Each part of the last micro-batch's gradients is applied as it comes, and gone before the next is made. What has to
    be held beside the adapters:

    * with accumulation, the sums over the micro-batches before, each until its part of the last one comes;
    * with clipping, all gradients until their norm is known: a copy of the adapters' size, whatever the method.

    Attributes:
        total_loss: Σ loss over the labels of the micro-batches so far.
    """

    def __init__(self, config: RunConfig, step: int, update: PartialUpdate, undo: Undo, enter: EnterPhase) -> None:
        self.total_loss = 0.0
        self._config, self._step, self._update, self._undo, self._enter = config, step, update, undo, enter
        self._left = config.grad_accumulation
        self._sums: AdapterTree = {}  # of the micro-batches before, until the last one's gradients come
        self._waiting: list[AdapterTree] = []  # for the norm
        self._squares = 0.0
        update.begin_step()

    @property
    def gradient_norm(self) -> float:
        """The Euclidean norm of all gradients together, before clipping."""
        return math.sqrt(self._squares)

    def enter(self, phase: str) -> None:
        """A phase of the method's work begins."""
        self._enter(phase)

    def loss(self, loss: mx.array) -> None:
        """Σ loss of the next micro-batch.

        Raises:
            NotFiniteError: if it is not a finite number; no adapter has been changed in this step.
        """
        needed(loss)
        self.total_loss += loss.item()
        self._left -= 1
        self._refuse_if_not_finite("loss", self.total_loss)

    def gradients(self, part: AdapterTree) -> None:
        """Some adapters' gradients of this micro-batch.

        Raises:
            NotFiniteError: if one is not a finite number; these adapters have not been changed, others may have been: see
                Undo.
        """
        self._add_sums(part)
        if self._left:
            self._sums.update(part)
            return
        squares = _sum_of_squares(part)
        self._refuse_if_not_finite("gradient", math.sqrt(squares))
        self._squares += squares
        if self._config.max_grad_norm:
            self._waiting.append(part)
        else:
            self._apply(part)

    def finish(self) -> None:
        """After the last micro-batch: scale what had to wait for the norm down to `max_grad_norm`, and apply it."""
        if not self._waiting:
            return
        self._enter("update")
        norm, limit = self.gradient_norm, self._config.max_grad_norm
        while self._waiting:
            part = self._waiting.pop(0)
            if norm > limit:
                _scale(part, limit / norm)
            self._apply(part)

    def _apply(self, part: AdapterTree) -> None:
        self._undo.lay_aside(part)
        self._update.apply(part)

    def _add_sums(self, part: AdapterTree) -> None:
        """Turn the part into its sum with what the micro-batches before gave, which is not held any more."""
        for path, pair in part.items():
            before = self._sums.pop(path, {})
            for name in list(before):
                pair[name] = before.pop(name) + pair[name]
        piece(part)

    def _refuse_if_not_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            config = self._config
            raise NotFiniteError(
                f"The {what} became {value} at step {self._step}: the run diverged. "
                f"Lower learning_rate (now {config.learning_rate:g}) or alpha (now {config.alpha:g}).",
                what,
                value,
                self._step,
            )


def _scale(gradients: AdapterTree, factor: float) -> None:
    for pair in gradients.values():
        for name in list(pair):
            pair[name] = factor * pair.pop(name)


def _sum_of_squares(gradients: AdapterTree) -> float:
    """In float32; not a number, or infinite, if any of the gradients is."""
    squares = [gradient.astype(mx.float32).square().sum() for pair in gradients.values() for gradient in pair.values()]
    total = mx.stack(squares).sum()
    needed(total)
    return total.item()
