"""Running several methods on one configuration, one after the other, each alone on the machine."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mesp_core import events
from mesp_core.config import RunConfig
from mesp_core.device import describe_machine
from mesp_core.methods.names import folder_name
from mesp_core.out_folder import RESULTS_FILE, OutFolder
from mesp_core.paper import figures_for
from mesp_core.prepare import Prepared
from mesp_core.results import Results
from mesp_core.session import Outcome, Session
from mesp_core.worker import Job

SAVE_EVERY_S = 30.0
# Ends that say nothing about the next method: it is run all the same.
OF_ONE_METHOD = ("finished", "stopped", "memory-limit", "crashed", "silent")


class Comparison:
    """Runs `methods` in order on `config`; what each did is in `results` and, after each, in OUT/results.json.

    `stop` ends the running method after its step and starts no further one; `kill` ends it at once.
    """

    def __init__(self, config: RunConfig, methods: Sequence[str], prepared: Prepared, folder: OutFolder) -> None:
        self.config, self.methods, self.prepared = config, list(methods), prepared
        self.folder, self.out = folder, folder.path
        paper = figures_for(config, prepared.checkpoint)
        settings = config.to_dict() | {"methods": self.methods, "scale": config.scale}
        self.results = Results(settings, describe_machine(), paper)
        self.session: Session | None = None
        self._ended = False
        self._saved = time.monotonic()

    def run(self) -> Iterator[events.Event]:
        """Yield every event of every method.

        A method that runs out of memory or time, or crashes, leaves the others theirs. An error in what all of them are
        given ends the comparison; what was done before is kept.
        """
        try:
            for method in self.methods:
                if self._ended:
                    return
                self.session = Session(self._job(method))
                if self._ended:
                    return
                for event in self.session.run():
                    self.results.add(event)
                    if isinstance(event, events.Step) and time.monotonic() - self._saved > SAVE_EVERY_S:
                        self._save()
                    yield event
                self.results.end(method, self.session.outcome)
                self._save()
                if self.session.outcome.kind not in OF_ONE_METHOD:
                    return
        finally:
            self._remove_empty_folders()

    def stop(self) -> None:
        """End after the running method's step."""
        self._ended = True
        if self.session is not None:
            self.session.stop()

    def kill(self) -> None:
        """End now."""
        self._ended = True
        if self.session is not None:
            self.session.kill()

    @property
    def outcome(self) -> Outcome | None:
        """How the first method that failed ended, else how the last one that was started did; None if none was."""
        outcomes = [result.outcome for result in self.results.methods.values() if result.outcome is not None]
        return next((outcome for outcome in outcomes if not outcome.ok), outcomes[-1] if outcomes else None)

    def adapter_folder(self, method: str) -> Path:
        """Where a method's adapter goes."""
        return self.out / folder_name(method) / "adapter"

    def _save(self) -> None:
        if any(result.steps for result in self.results.methods.values()):
            self.results.save(self.out / RESULTS_FILE)
        self._saved = time.monotonic()

    def _job(self, method: str) -> Job:
        return Job(
            config=self.config.replace(method=method),
            model_folder=self.prepared.source.path,
            tokens_folder=self.prepared.tokens.path,
            adapter_folder=self.adapter_folder(method).absolute(),
        )

    def _remove_empty_folders(self) -> None:
        """A run that came to nothing leaves nothing."""
        for method in self.methods:
            with contextlib.suppress(OSError):
                (self.out / folder_name(method)).rmdir()
        self.folder.release()
