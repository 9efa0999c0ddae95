"""The step loop: batches, optimizer, schedule, what each step cost. Knows no method, no file and no process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import mlx.optimizers as optim

from mesp_core.data.batches import Batch
from mesp_core.engine.method import AdapterTree, Method
from mesp_core.machine.memory import MB
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.partial_update import PartialUpdate
from mesp_core.training.step_update import StepUpdate
from mesp_core.training.undo import Undo


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: mean loss over its labels, seconds, tokens computed and trained on, allocator peaks in MB.

    `gradient_norm` is that of all adapters' gradients together, before clipping. The phases are the method's own, in which
    adapters are updated as their gradients come; and `update` where clipping makes all updates wait.
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
    """The allocator's peak in each phase of a step; the same phase in several micro-batches counts once, at its largest.

    `borrowed_bytes` as in Method.
    """

    def __init__(self, borrowed_bytes: int = 0) -> None:
        self._borrowed_bytes = borrowed_bytes
        self.megabytes: dict[str, float] = {}
        self._phase: str | None = None

    def enter(self, phase: str | None) -> None:
        """Close the phase before and begin this one (None: only close)."""
        if self._phase is not None:
            peak = (mx.get_peak_memory() - self._borrowed_bytes) / MB
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
    may_go_on: Callable[[int], bool] = lambda step: True,
    undo: Undo | None = None,
) -> int:
    """Train `adapters` in place for `config.steps` steps; `on_step` is told of each and returns False to stop.

    Adapters are updated as soon as their gradients are there (see StepUpdate, also for what accumulation and
    `max_grad_norm` hold); they are those of one whole step whenever `on_step` or `may_begin` is called.

    `may_begin(step)` is asked before each, outside the time that counts as the step's; it may wait, and returns False to
    stop. `may_go_on(step)` is asked between the micro-batches of a step and returns False to stop: the step is then dropped
    whole.

    Returns:
        The number of steps done.

    Raises:
        MespError: if a loss or gradient is no longer a number. After this, and after whatever else `method` raises, the
            adapters are as before that step if `undo.whole`; without `undo` a part of them may be a step ahead.
    """
    update = PartialUpdate(make_optimizer(config), adapters)
    undo = undo or Undo(adapters)
    for step in range(1, config.steps + 1):
        if not may_begin(step):
            return step - 1
        start = time.perf_counter()
        micro_batches = [next(batches) for _ in range(config.grad_accumulation)]
        labels = sum(batch.tokens for batch in micro_batches)
        peaks = PhasePeaks(method.borrowed_bytes)
        undo.begin_step()
        receiver = StepUpdate(config, step, update, undo, peaks.enter)
        try:
            for number, batch in enumerate(micro_batches):
                # Until the last one's gradients come, the step has changed no adapter.
                if number and not may_go_on(step):
                    return step - 1
                method.backpropagate(adapters, batch, 1.0 / labels, receiver)  # each token weighs the same
            receiver.finish()
        except BaseException:
            undo.restore()
            raise
        undo.begin_step()  # the step is whole
        peaks.enter(None)
        result = StepResult(
            step=step,
            loss=receiver.total_loss / labels,
            seconds=time.perf_counter() - start,
            tokens=sum(batch.inputs.size for batch in micro_batches),
            trained_tokens=labels,
            learning_rate=update.learning_rate,
            gradient_norm=receiver.gradient_norm,
            peak_by_phase_mb=peaks.megabytes,
        )
        if not on_step(result):
            return step
    return config.steps
