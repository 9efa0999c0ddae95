"""What a worker does: open what its job names, train within its limits, save, and say how that ended."""

import contextlib
import time

import mlx.core as mx

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import batches
from mesp_core.data.token_set import TokenSet
from mesp_core.engine.block_inputs import OnDisk, scratch_folder
from mesp_core.engine.method import AdapterTree
from mesp_core.errors import NotFiniteError
from mesp_core.methods.names import parse_method
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.non_finite import explained
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.baseline import baseline_mb
from mesp_core.training.build import activation_dtype, build_method
from mesp_core.training.channel import Channel
from mesp_core.training.saving import AdapterSaver
from mesp_core.training.train import StepResult, train
from mesp_core.training.undo import Undo


class JobRun:
    """One job: opened by the constructor, trained by `train`, ended by `finish`. What happens is said through `channel`."""

    def __init__(self, job: Job, channel: Channel) -> None:
        """Open everything, see that it can be used, and say `loaded`."""
        self._job, self._config, self._channel = job, job.config, channel
        before_mb = baseline_mb([parse_method(job.config.method).record])
        self._checkpoint = open_checkpoint(job.model_folder)
        self._tokens = TokenSet.open(job.tokens_folder)
        self._adapters = initial_adapters(self._checkpoint.architecture, job.config)
        self._saver = AdapterSaver(
            job.adapter_folder,
            self._adapters,
            job.config,
            self._checkpoint.architecture.num_hidden_layers,
            channel.log,
            lambda step, folder: channel.say(events.Saved(job.config.method, step, str(folder))),
        )
        self._saver.try_place()
        self._method, kernels = build_method(job.config, self._checkpoint, self._adapters, channel.log)
        self._undo = _undo(job.config, self._adapters, channel)
        channel.say(self._loaded(kernels, before_mb))
        self._began, self._waited = time.monotonic(), 0.0
        self._done = 0  # steps
        self._told_of_time = False

    def train(self) -> int:
        """Train until all steps are done or the run is to end; the number of steps done.

        What was learnt before an error is saved, if the adapters are those of a whole step.
        """
        order = batches(self._tokens, self._config.batch_size, self._config.seed)
        try:
            # Closed before the adapter is written: a scratch file may be what fills the disk.
            with contextlib.closing(self._method), contextlib.closing(self._undo):
                return train(
                    self._config,
                    self._method,
                    self._adapters,
                    order,
                    self._on_step,
                    self._may_begin,
                    lambda step: not self._should_end(step),
                    self._undo,
                )
        except Exception as error:
            if self._undo.whole and self._done:
                self._saver.save_after_failure(self._done)
            if isinstance(error, NotFiniteError):
                raise explained(error, self._checkpoint, self._dtype) from error
            raise

    def finish(self, steps: int) -> None:
        """Save what so many steps have taught, and say `done`."""
        self._saver.save(steps)
        outcome = "finished" if steps == self._config.steps else "stopped"
        adapter = str(self._job.adapter_folder) if steps else None
        self._channel.say(events.Done(self._config.method, outcome, steps, adapter))

    def _may_begin(self, step: int) -> bool:
        """Wait for the step's turn. What the step before has left to do is done now: it would disturb another's turn."""
        before = time.monotonic()
        allowed = self._channel.wait_for_turn()
        self._waited += time.monotonic() - before
        if not allowed:
            return False
        self._saver.save_if_due(step - 1)
        return not self._should_end(step)

    def _should_end(self, step: int) -> bool:
        """Whether the run was asked to stop or its time is over. What it waited for its turns was not its time."""
        limit = self._config.time_limit_s
        out_of_time = bool(limit and time.monotonic() - self._began - self._waited >= limit)
        if out_of_time and not self._told_of_time:
            self._told_of_time = True
            self._channel.log("warning", f"Stopping before step {step}: the time limit of {limit:g} s has passed.")
        return self._channel.stop_asked.is_set() or out_of_time

    def _on_step(self, result: StepResult) -> bool:
        self._done = result.step
        self._channel.say(
            events.Step(
                method=self._config.method,
                step=result.step,
                loss=result.loss,
                step_time_s=result.seconds,
                tokens=result.tokens,
                trained_tokens=result.trained_tokens,
                learning_rate=result.learning_rate,
                gradient_norm=result.gradient_norm,
                allocator_peak_mb=result.peak_mb,
                allocator_peak_by_phase_mb=result.peak_by_phase_mb,
            )
        )
        return True  # whether there is another one is asked when its turn has come

    def _loaded(self, kernels: dict[str, str], before_mb: float) -> events.Loaded:
        return events.Loaded(
            method=self._config.method,
            model_type=self._checkpoint.architecture.model_type,
            parameters=self._checkpoint.parameters,
            trainable_parameters=sum(array.size for pair in self._adapters.values() for array in pair.values()),
            bits=self._checkpoint.bits,
            dtype=self._dtype,
            adapter_dtype=self._config.adapter_dtype,
            device=str(mx.default_device().type).rsplit(".", 1)[-1],
            kernels=kernels,
            baseline_mb=round(before_mb, 3),
            samples=len(self._tokens),
            device_info=dict(mx.device_info()),
        )

    @property
    def _dtype(self) -> str:
        return str(activation_dtype(self._config, self._checkpoint)).removeprefix("mlx.core.")


def _undo(config: RunConfig, adapters: AdapterTree, channel: Channel) -> Undo:
    """What takes a broken-off step back, with its scratch file where the method's are."""
    scratch, on_tmpfs = scratch_folder(config.scratch_dir), bool(parse_method(config.method).options.get("tmpfs"))
    return Undo(
        adapters,
        lambda: OnDisk(scratch, on_tmpfs, holds="The adapters before a step"),
        lambda message: channel.log("info", message),
    )
