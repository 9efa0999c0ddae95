"""Running several methods on one configuration: one after the other, each alone on the machine, or step by step in turn."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mesp_core.errors import MespError
from mesp_core.machine.device import describe_machine
from mesp_core.machine.footprint import meter_name
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.runs.out_folder import RESULTS_FILE, OutFolder, claim_out
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.paper import figures_for
from mesp_core.runs.prepare import Prepared, prepare
from mesp_core.runs.results import Results
from mesp_core.runs.session import Session
from mesp_core.runs.turns import Turns
from mesp_core.settings.run_config import RunConfig

SAVE_EVERY_S = 30.0
SAVE_SHARE = 0.02  # of the time that saving may take: with 100,000 steps it takes seconds
# Ends that say nothing about the next method: it is run all the same.
OF_ONE_METHOD = ("finished", "stopped", "memory-limit", "crashed", "silent")


def compare(
    config: RunConfig,
    methods: Sequence[str],
    out: Path,
    interleave: bool = False,
    on_event: Callable[[events.Event], None] = lambda event: None,
) -> Results:
    """Run `methods` on `config`, from finding the model to OUT/results.json, and return what each did.

    `on_event` hears everything as it comes; what it raises ends the run and comes out of here. How each method run ended
    is in `results.methods[method].outcome`.

    Raises:
        MespError: for a model, data or folder that cannot be used, before anything is run.
    """
    folder = claim_out(out, methods)
    try:
        comparison = Comparison(config, methods, prepare(config), folder, interleave)
        with contextlib.closing(comparison.run()) as heard:
            for event in heard:
                on_event(event)
    finally:
        folder.release()
    return comparison.results


class Comparison:
    """Runs `methods` in order on `config`; what each did is in `results` and, after each, in OUT/results.json.

    With `interleave` all of them are in memory at once and do their steps in turn. `stop` ends what runs after the step
    that is under way and starts nothing further; `kill` ends it at once. Both may be called from any thread. `problem` says
    why the results could not be written when that was last tried; "" if they were.
    """

    def __init__(
        self,
        config: RunConfig,
        methods: Sequence[str],
        prepared: Prepared,
        folder: OutFolder,
        interleave: bool = False,
    ) -> None:
        self.config, self.methods, self.prepared, self.interleave = config, list(methods), prepared, interleave
        self.folder, self.out = folder, folder.path
        paper = figures_for(config, prepared.checkpoint)
        settings = config.to_dict() | {"methods": self.methods, "scale": config.scale, "interleave": interleave}
        machine = describe_machine() | {"memory_meter": meter_name()}
        self.results = Results(settings, machine, paper)
        self._alive: list[Session] = []
        self._ended = False
        self.problem = ""
        self._next_save = time.monotonic() + SAVE_EVERY_S

    def run(self) -> Iterator[events.Event]:
        """Yield every event of every method.

        A method that runs out of memory or time, or crashes, leaves the others theirs. An error in what all of them are
        given ends the comparison; what was done before is kept. Leaving the iterator early ends the workers.
        """
        told = ""
        heard = Turns(self.methods, self._begin, self._end).run() if self.interleave else self._one_after_the_other()
        try:
            with contextlib.closing(heard):
                for event in heard:
                    self.results.add(event)
                    if isinstance(event, events.Step) and time.monotonic() >= self._next_save:
                        self._save()
                    yield event
                    if self.problem and self.problem != told:  # said once, not at every try
                        told = self.problem
                        warning = events.Log(event.method, "warning", f"{told} The run goes on; it is tried again.")
                        self.results.add(warning)
                        yield warning
        finally:
            self._alive.clear()
            for method in self.methods:  # a run that came to nothing leaves nothing
                with contextlib.suppress(OSError):
                    self.adapter_folder(method).parent.rmdir()
            self.folder.release()

    def stop(self) -> None:
        """End after the step that is under way."""
        self._ended = True
        for session in self.sessions:
            session.stop()

    def kill(self) -> None:
        """End now."""
        self._ended = True
        for session in self.sessions:
            session.kill()

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions that have begun and not ended."""
        return tuple(self._alive)

    @property
    def outcome(self) -> Outcome | None:
        """How the first method that failed ended, else how the last one that was started did; None if none was."""
        outcomes = [result.outcome for result in self.results.methods.values() if result.outcome is not None]
        return next((outcome for outcome in outcomes if not outcome.ok), outcomes[-1] if outcomes else None)

    def adapter_folder(self, method: str) -> Path:
        """Where a method's adapter goes."""
        return self.folder.adapter(method)

    def _one_after_the_other(self) -> Iterator[events.Event]:
        for method in self.methods:
            session = self._begin(method)
            if session is None:
                return
            with contextlib.closing(session.run()) as heard:
                for event in heard:
                    if isinstance(event, events.Loaded):
                        session.hand_out(self.config.steps)
                    yield event
            if not self._end(session):
                return

    def _begin(self, method: str) -> Session | None:
        """The session of a method, not running yet; None once the comparison was asked to end."""
        with contextlib.suppress(OSError):  # the worker says what it misses
            self.prepared.tokens.put_back()
        session = Session(self._job(method), inherited=self.folder.inherited)
        self._alive.append(session)  # first: whoever asks from now on asks it too
        if self._ended:
            self._alive.remove(session)
            return None
        return session

    def _end(self, session: Session) -> bool:
        """Keep what came of a session that has ended; whether the other methods go on."""
        self._alive.remove(session)
        self.results.end(session.method, session.outcome)
        self._save()
        return session.outcome.kind in OF_ONE_METHOD

    def _save(self) -> None:
        """A full disk is no reason to lose what is being trained: `problem` says it, and the next save tries again."""
        start = time.monotonic()
        if any(result.steps for result in self.results.methods.values()):
            try:
                self.results.save(self.out / RESULTS_FILE)
            except MespError as error:
                self.problem = str(error)
            else:
                self.problem = ""
        now = time.monotonic()
        self._next_save = now + max(SAVE_EVERY_S, (now - start) / SAVE_SHARE)

    def _job(self, method: str) -> Job:
        return Job(
            config=self.config.replace(method=method),
            model_folder=self.prepared.source.path,
            tokens_folder=self.prepared.tokens.path,
            adapter_folder=self.adapter_folder(method).absolute(),
        )
