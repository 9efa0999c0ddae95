"""What several commands show: a progress line, lines and tables for people, or JSON lines for programs."""

import json
import sys
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mesp_core.processes.interruption import StopRequests, on_signals
from mesp_core.runs import events
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.out_folder import RESULTS_FILE
from mesp_core.runs.prepare import Prepared
from mesp_core.runs.results import COLUMNS
from mesp_core.settings.run_config import RunConfig

WORTH_TELLING = ("no OpenBLAS", "plan for")  # of what is only for information
ROOMY = 150  # characters in which the full headings fit


def console() -> Console:
    """stdout for people. A pipe or file has no width: a table then takes the room it needs."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


class Terminal:
    """Shows one command's run; used as a context manager so that the progress line is gone at the end.

    With `as_json`, stdout carries one JSON object a line and nothing else.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._out = console()
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=self._err,
            transient=True,
            disable=as_json or not self._err.is_terminal,
        )
        self._task: TaskID | None = None  # what is made before the run
        self._runs: dict[str, TaskID] = {}  # method -> its line, while it runs

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def progress(self, message: str, fraction: float) -> None:
        """Something that is made or downloaded before the run, 0 to 1."""
        if self._task is None:
            self._task = self._progress.add_task(message, total=100, facts="%")
        self._progress.update(self._task, description=message, completed=100 * fraction)

    def say(self, text: str) -> None:
        """Print a line as it is: paths and data may hold what rich takes for markup."""
        self._out.print(text, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line beside the results, on stderr."""
        self._err.print(text, markup=False, highlight=False, soft_wrap=True)

    def draw(self, table: Table) -> None:
        """Print a table."""
        self._out.print(table)

    def json(self, values: dict[str, Any]) -> None:
        """Print an object on a line of its own."""
        print(json.dumps(values, ensure_ascii=False), flush=True)

    def begin(self, config: RunConfig, prepared: Prepared) -> None:
        """Say what is about to be trained on what."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if self.as_json:
            return
        checkpoint, tokens = prepared.checkpoint, prepared.tokens
        bits = f"{checkpoint.bits}-bit" if checkpoint.bits else checkpoint.float_dtype
        self.say(
            f"{config.model} ({checkpoint.architecture.model_type}, {checkpoint.parameters / 1e6:.1f} M parameters, {bits}) "
            f"on {prepared.data_file}"
        )
        skipped = f", {tokens.skipped} skipped with nothing to learn from" if tokens.skipped else ""
        cut = f", {tokens.truncated} cut to {config.seq_len} tokens" if tokens.truncated else ""
        self.say(f"{len(tokens)} samples of up to {config.seq_len} tokens{cut}{skipped}")
        for warning in filter(None, [prepared.source.warning, *tokens.warnings]):
            self.say(f"warning: {warning}")

    def follow(self, comparison: Comparison) -> None:
        """Run a comparison and show its events. Ctrl-C ends it after the step, a second one at once.

        A closed terminal window or a polite kill ends it after the step too.
        """

        def stop() -> None:
            comparison.stop()
            dropped = comparison.config.grad_accumulation > 1
            when = "now, the step under way is dropped" if dropped else "after this step"
            self._err.print(f"Stopping {when}; press Ctrl-C again to end at once.")

        with on_signals(StopRequests(stop, comparison.kill)):
            for event in comparison.run():
                self._show(event, comparison.config.steps)
        self._progress.stop()

    def summary(self, comparison: Comparison) -> None:
        """The comparison table, the paper's rows beneath it, and where the files are."""
        results = comparison.results
        if self.as_json:
            for row in results.rows():
                self.json({"event": "summary", **row})
            return
        table = Table(box=SIMPLE_HEAD)
        roomy = self._out.width >= ROOMY
        for column in COLUMNS:
            heading = column.heading if roomy else column.short
            table.add_column(heading, justify="left" if column.key == "method" else "right", overflow="fold")
        for row in results.rows():
            table.add_row(*(Text(column.text(row[column.key])) for column in COLUMNS))
        for row in results.paper_rows():
            table.add_row(*(Text(column.text(row.get(column.key))) for column in COLUMNS), style="dim")
        self.draw(table)
        for method, result in results.methods.items():
            if len(result.steps) > 1 and comparison.adapter_folder(method).is_dir():
                summary = results.summary(method)
                self.say(
                    f"{method}: mean loss {summary['loss_start']:.3f} → {summary['loss_end']:.3f}, "
                    f"adapter in {comparison.adapter_folder(method)}"
                )
        if not comparison.problem:
            self.say(f"results in {comparison.out / RESULTS_FILE}")

    def _show(self, event: events.Event, steps: int) -> None:
        if self.as_json:
            self.json(event.to_dict())
        elif isinstance(event, events.Loaded):
            self._runs[event.method] = self._progress.add_task(event.method, total=steps, facts="")
        elif isinstance(event, events.Step):
            facts = f"loss {event.loss:.4f}  {event.step_time_s:.2f} s/step  {event.footprint_peak_mb:.0f} MB"
            if self._progress.disable:
                self.say(f"{event.method}  step {event.step}/{steps}  {facts}")
            else:
                self._progress.update(self._runs[event.method], completed=event.step, facts=facts)
        elif isinstance(event, events.Log) and (
            event.level != "info" or any(words in event.message for words in WORTH_TELLING)
        ):
            self._err.print(f"{event.method}: {event.message}", markup=False)
        elif isinstance(event, events.Done | events.Error) and event.method in self._runs:
            self._progress.remove_task(self._runs.pop(event.method))
