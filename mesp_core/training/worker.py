"""The child side of a run: one method, one process. Reads a job on stdin, says events on stdout, obeys `stop` and `step`.

    python -m mesp_core.training.worker

Imports MLX and little else; mlx_lm only for `autodiff`.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import TextIO

from mesp_core.errors import MespError, NotFiniteError
from mesp_core.processes.interruption import on_signals
from mesp_core.runs import events
from mesp_core.runs.job import Job

HEARTBEAT_S = 1.0
# For a signal that the system sends, in place of who sent it.
REASONS = {signal.SIGXCPU: "the system's limit on processor time (ulimit -t) is reached, as SIGXCPU says"}


class Channel:
    """Events out, commands in. Safe to use from the heartbeat's thread."""

    def __init__(self, out: TextIO, commands: TextIO, method: str) -> None:
        self.method = method
        self.stop_asked = threading.Event()
        self._turns = threading.Semaphore(0)  # steps that are allowed, and one more once a stop was asked for
        self._out, self._commands, self._lock = out, commands, threading.Lock()
        self._start = time.monotonic()
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, event: events.Event) -> None:
        """Send one event; a parent that is gone is a reason to stop."""
        try:
            with self._lock:
                self._out.write(event.to_json() + "\n")
                self._out.flush()
        except (BrokenPipeError, ValueError):
            self._stop()

    def log(self, level: str, message: str) -> None:
        """Send a log event."""
        self.say(events.Log(self.method, level, message))

    def wait_for_turn(self) -> bool:
        """Sleep until one more step is allowed (True) or a stop was asked for (False)."""
        self._turns.acquire()
        return not self.stop_asked.is_set()

    def stop_on_signal(self, number: signal.Signals) -> None:
        """End after the step, and say why. On a thread: a signal's handler may run while a lock is held that this takes."""

        def tell_and_stop() -> None:
            if not self.stop_asked.is_set():
                self.log(
                    "warning", f"Stopping after this step: {REASONS.get(number, f'the worker was sent {number.name}')}."
                )
            self._stop()

        threading.Thread(target=tell_and_stop, daemon=True).start()

    def _stop(self) -> None:
        self.stop_asked.set()
        self._turns.release()

    def _beat(self) -> None:
        while True:
            self.say(events.Heartbeat(self.method, round(time.monotonic() - self._start, 3)))
            time.sleep(HEARTBEAT_S)

    def _listen(self) -> None:
        for line in self._commands:
            try:
                command = json.loads(line)["command"]
            except (ValueError, KeyError, TypeError):
                continue
            if command == "stop":
                self._stop()
            elif command == "step":
                self._turns.release()
        # End of input: the parent is gone. What was learnt is still saved.
        self._stop()


def main() -> int:
    """Run the job on stdin; returns the exit code."""
    # Whatever a library prints must not end up between the events.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    job = Job.from_json(sys.stdin.readline())
    channel = Channel(out, sys.stdin, job.config.method)
    with on_signals(channel.stop_on_signal, also=[signal.SIGXCPU]):
        return _run_and_tell(job, channel)


def _run_and_tell(job: Job, channel: Channel) -> int:
    method = job.config.method
    try:
        run(job, channel)
        return 0
    except MespError as error:
        channel.say(events.Error(method, error.kind, str(error), error.exit_code, traceback.format_exc()))
        return error.exit_code
    except Exception as error:
        message = f"Unexpected {type(error).__name__} in the worker: {error}"
        channel.say(events.Error(method, "internal", message, 1, traceback.format_exc()))
        return 1


def run(job: Job, channel: Channel) -> None:
    """Open, check, train, save; everything that is said goes through `channel`."""
    import mlx.core as mx

    from mesp_core.adapters.adapter import initial_adapters
    from mesp_core.data.batches import batches
    from mesp_core.data.token_set import TokenSet
    from mesp_core.engine.block_inputs import OnDisk, scratch_folder
    from mesp_core.machine.memory import MB, read_footprint
    from mesp_core.methods.names import parse_method
    from mesp_core.models.checkpoint import open_checkpoint
    from mesp_core.models.non_finite import explained
    from mesp_core.training.build import activation_dtype, build_method
    from mesp_core.training.saving import AdapterSaver
    from mesp_core.training.train import StepResult, train
    from mesp_core.training.undo import Undo

    config = job.config
    mx.set_cache_limit(0)  # MLX's buffer cache counts in the footprint
    parse_method(config.method).record.kind.load()  # before the baseline: training memory is what the run adds
    baseline_mb = read_footprint(os.getpid()).current / MB

    checkpoint = open_checkpoint(job.model_folder)
    architecture = checkpoint.architecture
    tokens = TokenSet.open(job.tokens_folder)
    adapters = initial_adapters(architecture, config)
    saver = AdapterSaver(
        job.adapter_folder,
        adapters,
        config,
        architecture.num_hidden_layers,
        channel.log,
        lambda step, folder: channel.say(events.Saved(config.method, step, str(folder))),
    )
    saver.try_place()
    method, kernels = build_method(config, checkpoint, adapters, channel.log)
    scratch, on_tmpfs = scratch_folder(config.scratch_dir), bool(parse_method(config.method).options.get("tmpfs"))
    undo = Undo(
        adapters,
        lambda: OnDisk(scratch, on_tmpfs, holds="The adapters before a step"),
        lambda message: channel.log("info", message),
    )
    dtype = str(activation_dtype(config, checkpoint)).removeprefix("mlx.core.")
    channel.say(
        events.Loaded(
            method=config.method,
            model_type=architecture.model_type,
            parameters=checkpoint.parameters,
            trainable_parameters=sum(array.size for pair in adapters.values() for array in pair.values()),
            bits=checkpoint.bits,
            dtype=dtype,
            adapter_dtype=config.adapter_dtype,
            device=str(mx.default_device().type).rsplit(".", 1)[-1],
            kernels=kernels,
            baseline_mb=round(baseline_mb, 3),
            samples=len(tokens),
        )
    )

    start, waited, done, warned = time.monotonic(), 0.0, 0, False

    def should_end(step: int) -> bool:
        """Whether the run was asked to stop or its time is over. What it waited for its turns was other methods' time."""
        nonlocal warned
        out_of_time = config.time_limit_s and time.monotonic() - start - waited >= config.time_limit_s
        if out_of_time and not warned and step <= config.steps:
            warned = True
            channel.log("warning", f"Stopping before step {step}: the time limit of {config.time_limit_s:g} s has passed.")
        return bool(channel.stop_asked.is_set() or out_of_time)

    def may_begin(step: int) -> bool:
        nonlocal waited
        if not job.stepwise:
            return True
        before = time.monotonic()
        allowed = channel.wait_for_turn()
        waited += time.monotonic() - before
        saver.save_if_due(step - 1)  # now: after the step it would have been in another method's turn
        return allowed

    def on_step(result: StepResult) -> bool:
        nonlocal done
        done = result.step
        channel.say(
            events.Step(
                method=config.method,
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
        if not job.stepwise:
            saver.save_if_due(result.step)
        return not should_end(result.step + 1)

    order = batches(tokens, config.batch_size, config.seed)
    try:
        # Closed before the adapter is written: a scratch file may be what fills the disk.
        with contextlib.closing(method), contextlib.closing(undo):
            steps = train(config, method, adapters, order, on_step, may_begin, lambda step: not should_end(step), undo)
    except Exception as error:
        if undo.whole and done:
            saver.save_after_failure(done)
        if isinstance(error, NotFiniteError):
            raise explained(error, checkpoint, dtype) from error
        raise
    saver.save(steps)
    outcome = "finished" if steps == config.steps else "stopped"
    channel.say(events.Done(config.method, outcome, steps, str(job.adapter_folder) if steps else None))


if __name__ == "__main__":
    code = main()
    # Daemon threads may sit in a read or write; there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(code)
