"""One comparison on a thread of its own: prepares, runs, and tells the window by typed signals. Touches no widget."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from PySide6.QtCore import QThread, Signal

from app.experiment.experiment import Experiment
from app.threads.background import sentence
from app.threads.patient import Cancelled, patiently
from mesp_core.runs import events
from mesp_core.runs.out_folder import OutFolder, default_out
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.prepare import Prepared
from mesp_core.runs.results import Results

ROWS_EVERY_S = 0.5
ROWS_SHARE = 0.05  # of this thread's time that the summary may take: a median over 100,000 steps is not free


@dataclass(frozen=True)
class Begun:
    """The comparison is about to start its first worker. `paper`: the paper's rows of the table, if it has any."""

    experiment: Experiment
    prepared: Prepared
    paper: list[dict] = field(default_factory=list)


@dataclass(frozen=True)
class RunEnd:
    """How it all ended. `results` and `out` are None where no worker was started, `problem` is "" where all went well."""

    methods: dict[str, Outcome] = field(default_factory=dict)
    stopped: bool = False
    problem: str = ""
    details: str = ""
    results: Results | None = None
    out: Path | None = None

    @property
    def adapters(self) -> dict[str, Path]:
        """Every method's adapter folder, of those that have one."""
        return {name: outcome.adapter for name, outcome in self.methods.items() if outcome.adapter is not None}


class RunThread(QThread):
    """Runs one experiment. `ended` is always the last signal, and comes exactly once."""

    preparing = Signal(str, float)
    begun = Signal(Begun)
    event = Signal(events.Event)
    rows = Signal(list)  # the summary table so far, as Results.rows() gives it
    method_ended = Signal(str, Outcome)
    ended = Signal(RunEnd)

    def __init__(self, experiment: Experiment, out_base: Path, prepare: Callable, comparison: Callable) -> None:
        super().__init__()
        self.experiment, self._out_base = experiment, out_base
        self._prepare, self._make_comparison = prepare, comparison
        self._comparison = None
        self._asked = ""  # stop or kill
        self._told: dict[str, Outcome] = {}
        self._next_rows = 0.0

    def stop(self) -> None:
        """End after the running step. From any thread."""
        self._ask("stop")

    def kill(self) -> None:
        """End at once. From any thread."""
        self._ask("kill")

    def _ask(self, how: str) -> None:
        self._asked = how
        comparison = self._comparison
        if comparison is not None:
            getattr(comparison, how)()

    def run(self) -> None:
        """On the new thread."""
        folder: OutFolder | None = None
        try:
            config, prepare = self.experiment.config, self._prepare
            # A file on a dead network mount hangs where nothing reaches it: Stop must work even then.
            prepared = patiently(lambda report: prepare(config, report), self._report, "Preparing")
            self._report("Starting", 1.0)
            folder = default_out(self.experiment.methods, self._out_base)
            end = self._run(prepared, folder)
        except Cancelled:
            end = RunEnd(stopped=True)
        except Exception as error:
            end = self._failed(error)
        finally:
            if folder is not None:
                folder.release()
            # Qt's bindings may keep this object's shell for good; what it holds (mapped token files) must not stay with it.
            self._comparison = self._prepare = self._make_comparison = None
        self.ended.emit(end)

    def _report(self, message: str, fraction: float) -> None:
        if self._asked:
            raise Cancelled
        self.preparing.emit(message, fraction)

    def _run(self, prepared: Prepared, folder: OutFolder) -> RunEnd:
        experiment = self.experiment
        comparison = self._make_comparison(
            experiment.config, experiment.methods, prepared, folder, interleave=experiment.interleave
        )
        self._comparison = comparison
        if self._asked:  # it came before there was anyone to hear it
            self._ask(self._asked)
        self.begun.emit(Begun(experiment, prepared, comparison.results.paper_rows()))
        for event in comparison.run():
            self._tell_ended(comparison.results)  # of a method before this event's
            self.event.emit(event)
            self._tell_rows(comparison.results)
        self._tell_ended(comparison.results)
        self.rows.emit(comparison.results.rows())
        return self._end(comparison)

    def _end(self, comparison) -> RunEnd:  # noqa: ANN001 (a Comparison, or what a test puts in its place)
        outcome = comparison.outcome
        bad = outcome if outcome is not None and not outcome.ok and outcome.kind != "killed" else None
        return RunEnd(
            methods=dict(self._told),
            stopped=bool(self._asked) or (outcome is not None and outcome.kind in ("stopped", "killed")),
            problem=bad.message if bad else comparison.problem,
            details=bad.details if bad else "",
            results=comparison.results,
            out=comparison.out,
        )

    def _failed(self, error: Exception) -> RunEnd:
        """What was done before is kept, whatever went wrong."""
        comparison = self._comparison
        if comparison is None:
            return RunEnd(problem=sentence(error))
        self._tell_ended(comparison.results)
        return RunEnd(dict(self._told), problem=sentence(error), results=comparison.results, out=comparison.out)

    def _tell_ended(self, results: Results) -> None:
        for method, result in list(results.methods.items()):
            if result.outcome is not None and method not in self._told:
                self._told[method] = result.outcome
                self.method_ended.emit(method, result.outcome)

    def _tell_rows(self, results: Results) -> None:
        start = time.monotonic()
        if start >= self._next_rows:
            self.rows.emit(results.rows())
            now = time.monotonic()
            self._next_rows = now + max(ROWS_EVERY_S, (now - start) / ROWS_SHARE)
