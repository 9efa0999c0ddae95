"""A benchmark's results as tables for people, and as objects for programs."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mesp_core.bench.lean import Result
from mesp_core.bench.step_times import StepTime
from mesp_core.commands.terminal import console

DIGITS = {"MB": 2, "MB/token": 4, "×": 3}
VERDICTS = {True: "ok", False: "MISSED", None: ""}


def to_dict(result: Result) -> dict[str, Any]:
    """A result as `--json` prints it."""
    return {
        "event": "bench",
        "row": result.row,
        "group": result.group,
        "unit": result.unit,
        "paper": list(result.paper),
        "to_reach": result.bar,
        "measured": result.measured,
        "ok": result.ok,
        "note": result.note,
        **result.details,
    }


def show(results: Sequence[Result]) -> None:
    """Print the rows of memory, those of time, and the notes to both."""
    out = console()
    memory = [result for result in results if result.unit != "×"]
    time = [result for result in results if result.unit == "×"]
    if memory:
        table = _table("memory, bfloat16", "the paper's MeBP / MeSP (footprint, iPhone 17 Pro)")
        for result in memory:
            table.add_row(*_cells(result))
        out.print(table)
    if time:
        table = _table("time of a step, float32", "the paper's")
        table.add_column("s/step", justify="right")
        table.add_column("allocator peaks, MB", justify="right")
        for result in time:
            seconds = " / ".join(f"{value:.2f}" for value in result.details["step_time_s"])
            peaks = " / ".join(f"{value:.1f}" for value in result.details["allocator_peak_mb"])
            table.add_row(*_cells(result), seconds, peaks)
        out.print(table)
    for result in results:
        if result.note:
            out.print(f"{result.row}: {result.note}.", markup=False, soft_wrap=True)


def show_step_times(step_times: Sequence[StepTime]) -> None:
    """Print what was foretold of each method's step beside what was measured."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("a step of", overflow="fold")
    table.add_column("method", overflow="fold")
    for heading in ("modelled, s", "measured, s", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("ok")
    for row in step_times:
        numbers = (f"{row.modelled:.3f}", f"{row.measured:.3f}", f"{row.ratio:.2f}")
        table.add_row(str(row.case), Text(row.method), *numbers, VERDICTS[row.ok])
    console().print(table)


def in_words(result: Result) -> str:
    """A result in a line."""
    bar = "" if result.bar is None else f", to reach {result.bar:g}: {VERDICTS[result.ok]}"
    return f"{result.row}: {_number(result)} {result.unit}{bar}"


def _table(first: str, paper: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for heading in (paper, "to reach", "measured"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("ok")
    return table


def _cells(result: Result) -> tuple[Text, ...]:
    bar = "reported" if result.bar is None else f"≤ {result.bar:g} {result.unit}"
    return tuple(
        Text(text) for text in (result.row, _paper(result), bar, f"{_number(result)} {result.unit}", VERDICTS[result.ok])
    )


def _number(result: Result) -> str:
    return f"{result.measured:.{DIGITS[result.unit]}f}"


def _paper(result: Result) -> str:
    figures = result.paper
    if not figures:
        return "–"
    if result.unit == "×":
        return f"{figures[0]['step_time_s'] / figures[1]['step_time_s']:.2f}"
    return " / ".join(
        f"{row['memory_gb']} GB ({row['what']})" if "memory_gb" in row else f"{row['memory_mb']}" for row in figures
    )
