"""The step loop: batches, optimizer, schedule, what each step cost. Knows no method, no file and no process."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import mlx.optimizers as optim

from mesp_core.config import RunConfig
from mesp_core.data.batches import Batch
from mesp_core.errors import MespError
from mesp_core.memory import MB
from mesp_core.methods.method import AdapterTree, Method


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: mean loss over its labels, seconds, tokens computed and trained on, allocator peaks in MB.

    `gradient_norm` is that of all adapters' gradients together, before the update.
    """

    step: int
    loss: float
    seconds: float
    tokens: int
    trained_tokens: int
    learning_rate: float
    gradient_norm: float
    peak_by_phase_mb: dict[str, float]

    @property
    def peak_mb(self) -> float:
        """The largest of the phases."""
        return max(self.peak_by_phase_mb.values())


class PhasePeaks:
    """The allocator's peak in each phase of a step; the same phase in several micro-batches counts once, at its largest."""

    def __init__(self) -> None:
        self.megabytes: dict[str, float] = {}
        self._phase: str | None = None

    def enter(self, phase: str | None) -> None:
        """Close the phase before and begin this one (None: only close)."""
        if self._phase is not None:
            peak = mx.get_peak_memory() / MB
            self.megabytes[self._phase] = max(peak, self.megabytes.get(self._phase, 0.0))
        self._phase = phase
        mx.reset_peak_memory()


def make_optimizer(config: RunConfig) -> optim.Optimizer:
    """The optimizer and schedule that a configuration names, from mlx.optimizers."""
    rate = _schedule(config)
    if config.optimizer == "sgd":
        return optim.SGD(rate)
    if config.optimizer == "adam":
        return optim.Adam(rate)
    return optim.AdamW(rate, weight_decay=config.weight_decay)


def _schedule(config: RunConfig) -> float | Callable[[mx.array], mx.array]:
    """Linear warm-up from lr/(warmup+1), then the named schedule over the steps that are left, down to 0."""
    left = config.steps - config.warmup_steps
    if config.schedule == "cosine":
        after = optim.cosine_decay(config.learning_rate, left)
    elif config.schedule == "linear":
        after = optim.linear_schedule(config.learning_rate, 0.0, left)
    else:
        after = lambda step: mx.array(config.learning_rate)  # noqa: E731
        if not config.warmup_steps:
            return config.learning_rate
    if not config.warmup_steps:
        return after
    # Step 0 already moves: a first step at rate 0 would be thrown away.
    first = config.learning_rate / (config.warmup_steps + 1)
    warm_up = optim.linear_schedule(first, config.learning_rate, config.warmup_steps)
    return optim.join_schedules([warm_up, after], [config.warmup_steps])


def train(
    config: RunConfig,
    method: Method,
    adapters: AdapterTree,
    batches: Iterator[Batch],
    on_step: Callable[[StepResult], bool],
    may_begin: Callable[[int], bool] = lambda step: True,
) -> int:
    """Train `adapters` in place for `config.steps` steps; `on_step` is told of each and returns False to stop.

    `may_begin(step)` is asked before each, outside the time that counts as the step's; it may wait, and returns False to
    stop.

    Returns:
        The number of steps done.

    Raises:
        MespError: if the loss is no longer a number; the adapters are then as before that step.
    """
    optimizer = make_optimizer(config)
    optimizer.init(adapters)
    for step in range(1, config.steps + 1):
        if not may_begin(step):
            return step - 1
        start = time.perf_counter()
        micro_batches = [next(batches) for _ in range(config.grad_accumulation)]
        peaks = PhasePeaks()
        loss, gradients = _accumulate(method, adapters, micro_batches, peaks)
        peaks.enter("update")
        norm = _norm(gradients)
        for what, value in (("loss", loss), ("gradient", norm)):
            if not math.isfinite(value):
                raise MespError(
                    f"The {what} became {value} at step {step}: the run diverged. "
                    f"Lower learning_rate (now {config.learning_rate:g}) or alpha (now {config.alpha:g})."
                )
        updated = optimizer.apply_gradients(gradients, adapters)
        gradients = None
        adapters.update(updated)
        updated = None
        mx.eval(adapters, _needed_state(optimizer))
        peaks.enter(None)
        result = StepResult(
            step=step,
            loss=loss,
            seconds=time.perf_counter() - start,
            tokens=sum(batch.inputs.size for batch in micro_batches),
            trained_tokens=sum(batch.tokens for batch in micro_batches),
            learning_rate=float(optimizer.learning_rate),
            gradient_norm=norm,
            peak_by_phase_mb=peaks.megabytes,
        )
        if not on_step(result):
            return step
    return config.steps


def _needed_state(optimizer: optim.Optimizer) -> object:
    """What the next step reads. SGD without momentum keeps a momentum of zeros, which stays unmade if never evaluated."""
    return (optimizer.step, optimizer.learning_rate) if isinstance(optimizer, optim.SGD) else optimizer.state


def _norm(gradients: AdapterTree) -> float:
    """The Euclidean norm of all gradients together; not a number, or infinite, if any of them is."""
    squares = [gradient.astype(mx.float32).square().sum() for pair in gradients.values() for gradient in pair.values()]
    return math.sqrt(mx.stack(squares).sum().item())


def _accumulate(
    method: Method, adapters: AdapterTree, micro_batches: list[Batch], peaks: PhasePeaks
) -> tuple[float, AdapterTree]:
    """Mean loss and gradient over all labels of the micro-batches, each token weighing the same."""
    labels = sum(batch.tokens for batch in micro_batches)
    total, gradients = 0.0, None
    for batch in micro_batches:
        loss, more = method.loss_and_gradients(adapters, batch, 1.0 / labels, peaks.enter)
        total += loss.item()
        if gradients is None:
            gradients = more
        else:
            for path, pair in more.items():
                for part, gradient in pair.items():
                    gradients[path][part] = gradients[path][part] + gradient
            mx.eval(gradients)
        more = None
    return total / labels, gradients
