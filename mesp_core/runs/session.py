"""The parent side of a method run: starts the worker, measures it, hears its events, stops it, and says how it ended."""

import json
import math
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mesp_core.adapters.folder import CONFIG_FILE, clean_up
from mesp_core.machine.device import ON, battery, low_power_mode, thermal_state
from mesp_core.machine.memory import MB
from mesp_core.machine.meter import Meter
from mesp_core.processes.parent_side import Child
from mesp_core.processes.start import blas_for_child
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.runs.outcome import Outcome

SILENCE_S = 10.0
START_S = 120.0  # the first load of MLX's libraries may be scanned by the system, and holds Python's lock meanwhile
SLOWED = "Low power mode is on: step times are longer than this Mac's. System Settings, Battery turns it off."


class Session:
    """A method run: one method of a run, in one child process.

        session = Session(job)
        for event in session.run():
            if isinstance(event, events.Loaded):
                session.hand_out(job.config.steps)
        session.outcome

    The worker does only the steps that are handed out to it. `stop`, `kill` and `hand_out` may be called from any thread.
    """

    def __init__(self, job: Job, silence_s: float = SILENCE_S, inherited: Sequence[int] = ()) -> None:
        """Nothing is started yet. `inherited` are file descriptors that the worker shall hold too."""
        self.job, self.method, self.silence_s, self._inherited = job, job.config.method, silence_s, inherited
        self.outcome: Outcome | None = None
        self._child: Child | None = None
        self._meter: Meter | None = None
        self._queue: queue.Queue[events.Event | None] = queue.Queue()
        self._end_asked: str | None = None  # killed, silent or memory-limit: why we ended the child
        self._stop_asked = False
        self._job_sent = False
        self._steps = 0
        self._heard = 0.0  # when the worker last said something, by time.monotonic()
        self._footprint_mb = 0.0
        self._loaded = False
        self._start_mb = 0.0  # the footprint when the step under way began
        self._adapter_folder = job.adapter_folder

    @property
    def pid(self) -> int | None:
        """The worker's process id once it was started."""
        return self._child.pid if self._child else None

    def stop(self) -> None:
        """Ask the worker to finish its step and save."""
        self._stop_asked = True
        self._send({"command": "stop"})

    def hand_out(self, steps: int) -> None:
        """Let the worker, once it has said `loaded`, do so many more steps."""
        if not self._stop_asked:
            self._send({"command": "step", "steps": steps})
        # Once more: it is lost where a signal's handler sends it in the middle of another line, such as that above.
        if self._stop_asked:
            self._send({"command": "stop"})

    def kill(self, why: str = "killed") -> None:
        """End the worker at once; nothing more is saved."""
        self._end_asked = self._end_asked or why
        if self._child is not None:
            self._child.kill()

    def run(self) -> Iterator[events.Event]:
        """Start the worker and yield what it says until it has ended; `outcome` is set afterwards.

        The footprints of steps are filled in here, and memory events are added. Leaving the iterator early ends the
        worker.
        """
        blas, sentence = blas_for_child()
        yield events.Log(self.method, "info", sentence)
        if low_power_mode() == ON:
            yield events.Log(self.method, "warning", SLOWED)
        if self._end_asked is not None:
            self.outcome = Outcome(self._end_asked, f"{self.method}: ended before it began, as asked.", exit_code=1)
            return
        self._heard = time.monotonic()
        child = self._child = Child(
            "mesp_core.training.worker", blas=blas, inherited=self._inherited, parse=self._parse, heard=self._queue
        )
        final: events.Event | None = None
        try:
            with Meter(child.pid, self._on_memory) as self._meter:
                child.send(self.job.to_json())
                self._job_sent = True
                if self._stop_asked:
                    self.stop()
                for event in self._until_silent():
                    if isinstance(event, events.Done | events.Error):
                        final = event
                    if isinstance(event, events.Saved):
                        self._adapter_folder = Path(event.adapter)
                    yield event
                child.wait(self.silence_s)  # no longer: what hangs at its end must not hang us
        finally:
            if child.alive:
                self.kill()
            child.close()
            self.outcome = self._judge(final)
        if final is None:  # the worker could not say it itself
            yield events.Error(
                self.method, self.outcome.kind, self.outcome.message, self.outcome.exit_code, self.outcome.details
            )

    def _until_silent(self) -> Iterator[events.Event]:
        """Events as they come, until the worker's stdout ends; a worker that is silent for too long is ended."""
        turn = time.monotonic()
        while True:
            try:
                event = self._queue.get(timeout=0.2)
            except queue.Empty:
                event = None
            else:
                if event is None:
                    return
            last_turn, turn = turn, time.monotonic()
            if turn - last_turn > 2.0:  # it is we who were away, suspended or busy: listen again before judging
                self._heard = turn
            if turn - self._heard > (self.silence_s if self._loaded else max(self.silence_s, START_S)):
                self.kill("silent")
            if self._end_asked is not None:  # also where `kill` came while the child was being started
                self.kill()
            if event is None:
                continue
            if isinstance(event, events.Memory):
                self._check_limit(event.footprint_mb)
            yield self._completed(event) if isinstance(event, events.Step) else event

    def _check_limit(self, footprint_mb: float) -> None:
        limit = self.job.config.memory_limit_mb
        if limit and footprint_mb > limit and self._end_asked is None:
            self._footprint_mb = footprint_mb
            self.kill("memory-limit")

    def _completed(self, step: events.Step) -> events.Step:
        """A step with what only the session knows; its footprints and time were added when it was read."""
        self._steps = step.step
        level = battery()
        return replace(
            step,
            perplexity=_perplexity(step.loss),
            tokens_per_s=step.tokens / step.step_time_s if step.step_time_s else None,
            thermal_state=thermal_state(),
            battery_percent=level.percent,
            timestamp=time.time(),
        )

    def _parse(self, line: str) -> events.Event:
        """On the thread that reads the worker's stdout. Footprints are read here, as near to the step's end as can be."""
        self._heard = time.monotonic()  # here, because whoever takes the events may be slow
        event = events.parse_event(line)
        if isinstance(event, events.Loaded):
            self._loaded = True
            self._meter.mark()
            self._start_mb = self._meter.current / MB
        if isinstance(event, events.Step):
            t_s = round(self._meter.elapsed_s, 3)
            peak_mb, end_mb = self._meter.mark() / MB, self._meter.current / MB
            start_mb, self._start_mb = self._start_mb, end_mb
            return replace(
                event,
                footprint_start_mb=start_mb,
                footprint_end_mb=end_mb,
                footprint_peak_mb=peak_mb,
                footprint_peak_exact=self._meter.exact,
                t_s=t_s,
            )
        return event

    def _on_memory(self, t_s: float, nbytes: int) -> None:
        self._queue.put(events.Memory(self.method, round(t_s, 3), round(nbytes / MB, 3)))

    def _send(self, command: dict[str, str | int]) -> None:
        if self._job_sent:  # which is what the worker reads first
            self._child.send(json.dumps(command))

    def _judge(self, final: events.Event | None) -> Outcome:
        """The outcome, once the worker has ended; `final` is its done or error event, if it got that far."""
        clean_up(self.job.adapter_folder)
        adapter = self._adapter_folder if self._adapter_folder.is_dir() else None
        common = {
            "steps": final.steps if isinstance(final, events.Done) else self._steps,
            "adapter": adapter,
            "footprint_peak_mb": self._meter.peak / MB if self._meter else None,
        }
        if isinstance(final, events.Done):
            message = f"{self.method}: {final.outcome} after {final.steps} of {self.job.config.steps} steps."
            return Outcome(final.outcome, message, **common)
        saved = f" The adapter of {_step_of(adapter)} is in {adapter}." if adapter else ""
        if isinstance(final, events.Error) and self._end_asked is None:
            message = f"{self.method}: {final.message}{saved}"
            return Outcome(final.kind, message, **common, exit_code=final.exit_code, details=final.details)
        message = f"{self.method}: {self._how_it_ended()} after step {self._steps}.{saved}"
        if self._end_asked in (None, "silent"):
            message += self._child.last_words()
        details = "\n".join(self._child.printed)
        return Outcome(self._end_asked or "crashed", message, **common, exit_code=1, details=details)

    def _how_it_ended(self) -> str:
        if self._end_asked == "killed":
            return "ended at once, as asked,"
        if self._end_asked == "silent":
            return f"the worker said nothing for {self.silence_s:g} s and was ended"
        if self._end_asked == "memory-limit":
            limit = self.job.config.memory_limit_mb
            return (
                f"the footprint reached {self._footprint_mb:.0f} MB, above the limit of {limit} MB "
                "(lower seq_len or batch_size), and the worker was ended"
            )
        return f"the worker {self._child.how_it_ended()}"


def _step_of(adapter: Path) -> str:
    """`step 40`, as the adapter itself says."""
    try:
        return f"step {json.loads((adapter / CONFIG_FILE).read_text('utf-8'))['mesp']['step']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "an earlier step"


def _perplexity(loss: float) -> float | None:
    return math.exp(loss) if loss < 700 else None  # also None for NaN
