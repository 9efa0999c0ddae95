"""The results of a comparison: what is kept, its summary and table, and the files it becomes. Loads no MLX."""

import csv
import io
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.files.whole_file import write_whole
from mesp_core.runs import events
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.paper import table_row

SCHEMA = 1
AT_EITHER_END = 5  # steps at most whose mean loss is given at the beginning and the end


@dataclass(frozen=True)
class Column:
    """One column of the comparison table: its key in a row, its heading with the unit, and how a value is written.

    `short` is the heading where there is little room, `tooltip` says in a sentence what the column means.
    """

    key: str
    heading: str
    short: str
    form: str
    lower_is_better: bool | None
    tooltip: str

    def text(self, value: Any) -> str:
        """The value as the table shows it; a dash where there is none."""
        if value is None:
            return "–"
        if self.key == "reduction" and value <= -1:  # −742 % less says nothing to anyone
            return f"{1 - value:.1f} × first"
        return self.form.format(value)


COLUMNS = (
    Column("method", "method", "method", "{}", None, "The training method, with its options."),
    Column("step_time_s", "s/step", "s/step", "{:.3f}", True, "The median time of a step, in seconds; lower is better."),
    Column(
        "tokens_per_s",
        "tokens/s",
        "tok/s",
        "{:.0f}",
        False,
        "Input positions computed in a second, over all steps; higher is better.",
    ),
    Column(
        "allocator_peak_mb",
        "allocator peak, MB",
        "alloc. MB",
        "{:.1f}",
        True,
        "The most memory MLX's allocator held in any step, in MB of 1024·1024 bytes; lower is better.",
    ),
    Column(
        "footprint_peak_mb",
        "footprint peak, MB",
        "footpr. MB",
        "{:.1f}",
        True,
        "The most memory the operating system counted for the worker process, in MB of 1024·1024 bytes; lower is better.",
    ),
    Column(
        "training_memory_mb",
        "training memory, MB",
        "train. MB",
        "{:.1f}",
        True,
        "The footprint peak without what the process held before the checkpoint was opened, in MB of 1024·1024 bytes; "
        "lower is better.",
    ),
    Column(
        "reduction",
        "less than first",
        "less",
        "{:.0%}",
        False,
        "How much less training memory the method took than the first one; higher is better.",
    ),
    Column(
        "final_loss",
        "final loss",
        "loss",
        "{:.4f}",
        None,
        "The loss of the last step, in nats; methods that compute the same gradients have the same loss.",
    ),
    Column(
        "max_loss_difference",
        "loss difference",
        "differs",
        "{:.1e}",
        None,
        "The largest difference of any step's loss from the first method's, relative to it.",
    ),
)


@dataclass
class MethodResult:
    """What one method did: its load event, its steps, how it ended, and its memory over time."""

    loaded: events.Loaded | None = None
    steps: list[events.Step] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    outcome: Outcome | None = None
    log: list[str] = field(default_factory=list)


class Results:
    """A comparison in the making or read back; `config` and `machine` are JSON-able dictionaries."""

    def __init__(self, config: dict[str, Any], machine: dict[str, Any], paper: Iterable[dict[str, Any]] = ()) -> None:
        self.config, self.machine, self.paper = config, machine, list(paper)
        self.methods: dict[str, MethodResult] = {}

    def add(self, event: events.Event) -> None:
        """Take in one event of a run."""
        result = self.methods.setdefault(event.method, MethodResult())
        if isinstance(event, events.Loaded):
            result.loaded = event
        elif isinstance(event, events.Step):
            result.steps.append(event)
        elif isinstance(event, events.Memory):
            result.memory.append((event.t_s, event.footprint_mb))
        elif isinstance(event, events.Log):
            result.log.append(f"{event.level}: {event.message}")

    def end(self, method: str, outcome: Outcome) -> None:
        """Note how a method run ended."""
        self.methods.setdefault(method, MethodResult()).outcome = outcome

    def summary(self, method: str) -> dict[str, Any]:
        """The figures of one method; None where it did not come to one.

        step_time_s is the median; max_loss_difference the largest |loss − first's| / first's over the steps both did;
        reduction how much less training memory it took than the first method; the loss_start and loss_end are means
        over up to five steps each, never the same ones.
        """
        result, first = self.methods[method], next(iter(self.methods))
        steps = result.steps
        peak_mb = _footprint_peak(result)
        training_mb = None
        if peak_mb is not None and result.loaded is not None:
            training_mb = peak_mb - result.loaded.baseline_mb
        summary = dict.fromkeys(column.key for column in COLUMNS[1:])
        summary |= {"footprint_peak_mb": peak_mb, "training_memory_mb": training_mb, "steps": len(steps)}
        if not steps:
            return summary
        losses = [step.loss for step in steps]
        window = max(1, min(AT_EITHER_END, len(steps) // 2))
        seconds = sum(step.step_time_s for step in steps)
        summary |= {
            "step_time_s": statistics.median(step.step_time_s for step in steps),
            "tokens_per_s": sum(step.tokens for step in steps) / seconds if seconds else None,
            "allocator_peak_mb": max(step.allocator_peak_mb for step in steps),
            "allocator_peak_by_phase_mb": _largest_by_phase(steps),
            "final_loss": losses[-1],
            "loss_start": statistics.fmean(losses[:window]),
            "loss_end": statistics.fmean(losses[-window:]),
        }
        if method != first:
            summary["max_loss_difference"] = _loss_difference(steps, self.methods[first].steps)
            of_first = self.summary(first)["training_memory_mb"]
            if of_first and training_mb is not None:
                summary["reduction"] = 1 - training_mb / of_first
        return summary

    def rows(self) -> list[dict[str, Any]]:
        """The comparison table, one row a method, by the keys of COLUMNS."""
        return [{"method": method, **self.summary(method)} for method in self.methods]

    def paper_rows(self) -> list[dict[str, Any]]:
        """The paper's figures for this configuration as further rows of the table; most columns have no value there."""
        return [table_row(figures) for figures in self.paper]

    def _facts(self, name: str, result: MethodResult) -> dict[str, Any]:
        """What the file holds of a method beside its steps and samples."""
        outcome = result.outcome
        return {
            "loaded": result.loaded.to_dict() if result.loaded else None,
            "summary": self.summary(name),
            "outcome": {"kind": outcome.kind, "message": outcome.message} if outcome else None,
            "log": result.log,
        }

    def save(self, file: Path) -> None:
        """Write the results file, whole or not at all. Raises MespError if it cannot be written."""
        write_whole(file, self.to_json())

    def to_json(self) -> Iterator[str]:
        """The results file's text, a step or sample a line, piece by piece.

        As one dictionary 50,000 steps are millions of objects, and while Python's collector walks over them no other
        thread of the process runs, a window's for example.
        """
        head = {"schema": SCHEMA, "config": self.config, "machine": self.machine, "paper": self.paper}
        yield json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}") + ',\n "methods": {'
        for number, (name, result) in enumerate(list(self.methods.items())):
            yield ("," if number else "") + f"\n  {json.dumps(name)}: {{"
            for key, value in self._facts(name, result).items():
                yield f'\n   "{key}": {json.dumps(events.finite(value), ensure_ascii=False)},'
            yield '\n   "steps": ['
            yield from _lines(step.to_json() for step in list(result.steps))
            yield '],\n   "memory": ['
            yield from _lines(json.dumps({"t_s": t_s, "footprint_mb": mb}) for t_s, mb in list(result.memory))
            yield "]\n  }"
        yield "\n }\n}\n"

    def to_csv(self) -> str:
        """Every step of every method, one a line; phases as columns of their own."""
        steps = [step for result in self.methods.values() for step in result.steps]
        names = list(dict.fromkeys(name for step in steps for name in _csv_row(step)))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_csv_row, steps))
        return text.getvalue()

    def to_markdown(self) -> str:
        """The comparison table, the paper's rows beneath ours."""
        lines = [" | ".join(column.heading for column in COLUMNS), "|".join(["---", *["---:"] * (len(COLUMNS) - 1)])]
        rows = [*self.rows(), *self.paper_rows()]
        lines += [" | ".join(column.text(row.get(column.key)) for column in COLUMNS) for row in rows]
        return "".join(f"| {line} |\n" if "---" not in line else f"|{line}|\n" for line in lines)

    @classmethod
    def load(cls, file: Path) -> "Results":
        """Read a results file. Raises UsageError if it is none."""
        try:
            values = json.loads(file.read_text("utf-8"))
            results = cls(values["config"], values["machine"], values.get("paper", ()))
            for name, method in values["methods"].items():
                result = results.methods[name] = MethodResult()
                for event in filter(None, [method.get("loaded"), *method["steps"]]):
                    results.add(events.parse_event(json.dumps(event)))
                result.memory = [(sample["t_s"], sample["footprint_mb"]) for sample in method.get("memory", ())]
                result.log = list(method.get("log", ()))
                if method.get("outcome"):
                    result.outcome = Outcome(**method["outcome"])
                    result.outcome = _with_peak(result.outcome, method["summary"].get("footprint_peak_mb"))
            return results
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file}: not a results file of mesp ({error}).") from error


def _lines(items: Iterable[str]) -> Iterator[str]:
    """JSON values as the inside of a list, one a line."""
    for number, item in enumerate(items):
        yield (",\n    " if number else "\n    ") + item


def _csv_row(step: events.Step) -> dict[str, Any]:
    values = step.to_dict()
    del values["event"]
    phases = values.pop("allocator_peak_by_phase_mb")
    return values | {f"allocator_peak_{phase}_mb": mb for phase, mb in phases.items()}


def _with_peak(outcome: Outcome, peak_mb: float | None) -> Outcome:
    return Outcome(outcome.kind, outcome.message, footprint_peak_mb=peak_mb)


def _footprint_peak(result: MethodResult) -> float | None:
    """The meter's peak at the end of the run; while it goes, the largest so far."""
    if result.outcome is not None and result.outcome.footprint_peak_mb is not None:
        return result.outcome.footprint_peak_mb
    seen = [step.footprint_peak_mb for step in result.steps if step.footprint_peak_mb is not None]
    return max([*seen, *(mb for _, mb in result.memory)], default=None)


def _largest_by_phase(steps: list[events.Step]) -> dict[str, float]:
    phases = dict.fromkeys(phase for step in steps for phase in step.allocator_peak_by_phase_mb)
    return {phase: max(step.allocator_peak_by_phase_mb.get(phase, 0.0) for step in steps) for phase in phases}


def _loss_difference(steps: list[events.Step], first: list[events.Step]) -> float | None:
    pairs = zip(steps, first, strict=False)
    return max((abs(a.loss - b.loss) / abs(b.loss) for a, b in pairs if b.loss), default=None)
