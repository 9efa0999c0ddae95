"""`mesp bench lean`: what it measures, and what is to be reached. The rows are data; the figures come from trials.

Every trial is one batch of one sample of random ids, rank 8, all seven projections, SGD, no buffer cache. Memory is measured
in bfloat16, time in float32, as ratios of medians of steps that the methods do by turns in one process: whatever slows the
machine down slows all of them alike.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mesp_core.bench.trial import BASELINE_PEAK, Trial, TrialStep, run_trial
from mesp_core.errors import UsageError
from mesp_core.methods.registry import COMPARED
from mesp_core.models import synthetic
from mesp_core.runs.paper import paper_figures

ON_DISK = "lean:inputs=disk"
Run = Callable[[Trial], list[TrialStep]]


@dataclass(frozen=True)
class Result:
    """A row's outcome. `measured`, and `bar`, which it is not to pass (None: only reported), are in `unit`.

    `paper`: rows of paper_figures.json beside which it stands. `details` go with it in --json, `note` beneath the table.
    """

    row: str
    group: str
    unit: str
    measured: float
    bar: float | None
    paper: tuple[dict[str, Any], ...] = ()
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """Whether the bar is kept; None without one."""
        return None if self.bar is None else self.measured <= self.bar


@dataclass(frozen=True)
class Peak:
    """The allocator's peak of one step. `blocks`: compute only so many (0: all), and add what the others hold."""

    model: str
    seq_len: int
    method: str
    bar: float | None = None
    blocks: int = 0
    labelled: float = 1.0
    group = "memory"

    @property
    def name(self) -> str:
        return f"{self.model}@{self.seq_len}/{self.method}"

    @property
    def trial(self) -> Trial:
        return Trial(self.model, (self.method,), self.seq_len, "bfloat16", blocks=self.blocks, labelled=self.labelled)

    def result(self, run: Run) -> Result:
        (step,) = run(self.trial)
        # A method that the paper does not know stands beside those it does.
        figures = _figures(self.model, self.seq_len, (self.method,) if self.method in COMPARED else COMPARED)
        notes = [f"{self.labelled:.0%} of the tokens labelled"] * (self.labelled < 1) + _left_out(step)
        details = {"peak_by_phase_mb": step.peak_by_phase_mb, "training_memory_mb": step.training_memory_mb}
        return Result(
            self.name, self.group, "MB", step.peak_mb, self.bar, figures, "; ".join(notes), details | _blocks(step)
        )


@dataclass(frozen=True)
class Growth:
    """What a token more adds to the allocator's peak, from a short to a long sequence."""

    model: str
    short: int
    long: int
    method: str
    bar: float
    blocks: int = 0
    group = "growth"

    @property
    def name(self) -> str:
        return f"{self.model}@{self.short}-{self.long}/{self.method}"

    def result(self, run: Run) -> Result:
        peaks = [Peak(self.model, length, self.method, blocks=self.blocks) for length in (self.short, self.long)]
        (short,), (long,) = (run(peak.trial) for peak in peaks)
        growth = (long.peak_mb - short.peak_mb) / (self.long - self.short)
        notes = [f"{short.peak_mb:.1f} MB at {self.short} tokens, {long.peak_mb:.1f} at {self.long}", *_left_out(long)]
        details = {"peak_mb": {self.short: short.peak_mb, self.long: long.peak_mb}} | _blocks(long)
        return Result(self.name, self.group, "MB/token", growth, self.bar, (), "; ".join(notes), details)


@dataclass(frozen=True)
class Overhead:
    """Training memory, which is what the system sees, above the allocator's peak."""

    model: str
    seq_len: int
    method: str
    bar: float
    group = "footprint"

    @property
    def name(self) -> str:
        return f"{self.model}@{self.seq_len}/{self.method}/overhead"

    def result(self, run: Run) -> Result:
        (step,) = run(Peak(self.model, self.seq_len, self.method).trial)
        note = f"training memory minus allocator peak: {step.training_memory_mb:.1f} - {step.peak_mb:.1f} MB"
        details = {"training_memory_mb": step.training_memory_mb, "allocator_peak_mb": step.peak_mb}
        return Result(self.name, self.group, "MB", step.training_memory_mb - step.peak_mb, self.bar, (), note, details)


@dataclass(frozen=True)
class Ratio:
    """The time of a method's step to that of another, both in the trial of the group's methods."""

    model: str
    seq_len: int
    method: str
    to: str
    bar: float | None = None
    group: str = "time"

    @property
    def name(self) -> str:
        return f"{self.method}/{self.to}"

    def trial(self, methods: Sequence[str], rounds: int) -> Trial:
        return Trial(self.model, tuple(methods), self.seq_len, "float32", rounds)

    def result(self, steps: list[TrialStep]) -> Result:
        ours, theirs = ([step for step in steps if step.method == name] for name in (self.method, self.to))
        # The first step of several warms up: pages of the file, the BLAS's buffers.
        timed = [[step.seconds for step in some[1:] or some] for some in (ours, theirs)]
        medians = [statistics.median(seconds) for seconds in timed]
        peaks = [max(step.peak_mb for step in some) for some in (ours, theirs)]
        details = {"key": ours[0].key, "step_time_s": medians, "all_step_times_s": timed, "allocator_peak_mb": peaks}
        note = f"run as {ours[0].key}" if ours[0].key != self.method else ""
        paper = _figures(self.model, self.seq_len, (self.method, self.to))
        paper = paper if len(paper) == 2 and all("step_time_s" in figure for figure in paper) else ()
        return Result(self.name, self.group, "×", medians[0] / medians[1], self.bar, paper, note, details)


QWEN_05, QWEN_15, QWEN_3, LLAMA_3 = "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "llama-3.2-3b"
Row = Peak | Growth | Overhead | Ratio
ROWS: tuple[Row, ...] = (
    Peak(QWEN_05, 256, "lean", 28),
    Peak(QWEN_05, 256, ON_DISK, 18),
    Peak(QWEN_05, 256, "mesp"),
    Peak(QWEN_05, 256, "mebp"),
    Peak(QWEN_05, 1024, "lean", 70),
    Peak(QWEN_05, 1024, ON_DISK, 32),
    Peak(QWEN_15, 256, "lean", 55),
    Peak(QWEN_3, 256, "lean", 82),
    # All 28 blocks of it would be hours.
    Peak(LLAMA_3, 2048, ON_DISK, 180, blocks=4, labelled=0.3),
    Growth(QWEN_05, 256, 4096, "lean", 0.06),
    Growth(QWEN_05, 256, 4096, ON_DISK, 0.02),
    Overhead(QWEN_05, 256, "lean", 10),
    Ratio(QWEN_05, 256, "mesp", "mebp", 1.00),
    Ratio(QWEN_05, 256, "lean", "mebp", 1.05),
    Ratio(QWEN_05, 256, f"lean:budget={BASELINE_PEAK}", "mebp", 0.90),
    Ratio(QWEN_05, 256, "lean:budget=450MB", "mebp", 0.75),
    # mlx-lm's kernel is another on the CPU, so there is no bar.
    Ratio(QWEN_05, 256, "lean", "autodiff", group="autodiff"),
    Ratio(QWEN_05, 256, "lean", "autodiff:grad-checkpoint", group="autodiff"),
)
GROUPS = ("memory", "growth", "footprint", "time", "autodiff")
ONE_STEP = ("autodiff",)  # groups whose methods do one step each: it takes minutes
QUICK_BLOCKS = 2  # of Growth's trials
QUICK_LEAVES_OUT = ("autodiff",)


def choose(text: str | None, quick: bool) -> list[Row]:
    """The rows that a comma-separated list of groups and rows' names asks for; None: all, or all that are quick.

    Raises:
        UsageError: for what is neither.
    """
    wanted = [part.strip() for part in text.split(",") if part.strip()] if text is not None else None
    if wanted is None:
        wanted = [group for group in GROUPS if not (quick and group in QUICK_LEAVES_OUT)]
    names = [row.name for row in ROWS]
    for part in wanted:
        if part not in GROUPS and part not in names:
            raise UsageError(f"--rows: there is no {part!r}; there are {', '.join(GROUPS)}, or of these {', '.join(names)}.")
    if not wanted:
        raise UsageError(f"--rows: none given; there are {', '.join(GROUPS)}.")
    rows = [row for row in ROWS if row.group in wanted or row.name in wanted]
    return [replace(row, blocks=QUICK_BLOCKS) if quick and isinstance(row, Growth) else row for row in rows]


def measure(
    rows: Sequence[Row], steps: int, say: Callable[[str], None], on_progress: synthetic.OnProgress
) -> Iterator[Result]:
    """Each row's result as soon as it is there. `steps`: of each method in `time`, besides the first.

    `say` hears in a line what is done, `on_progress` of checkpoints that are written. A trial that several rows need is
    made once.

    Raises:
        MespError: if a checkpoint cannot be written, or a trial fails.
    """
    done: dict[Trial, list[TrialStep]] = {}

    def run(trial: Trial) -> list[TrialStep]:
        if trial not in done:
            cut = f", {trial.blocks} blocks" if trial.blocks else ""
            say(f"{trial.model}, {trial.seq_len} tokens, {trial.dtype}{cut}: {', '.join(trial.methods)}")
            folder: Path = synthetic.ensure(trial.model, on_progress)
            done[trial] = run_trial(trial, folder, say)
        return done[trial]

    for row in rows:
        if not isinstance(row, Ratio):
            yield row.result(run)
            continue
        together = [other for other in rows if isinstance(other, Ratio) and other.group == row.group]
        # What others are held against comes first: a budget may be its peak.
        methods = dict.fromkeys([*(other.to for other in together), *(other.method for other in together)])
        rounds = 1 if row.group in ONE_STEP else steps + 1
        yield row.result(run(row.trial(methods, rounds)))


def _figures(model: str, seq_len: int, methods: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The published figures for a model at a length: the paper's of these methods, or another paper's."""
    wanted = {"model": model, "seq_len": seq_len, "rank": 8}
    rows = [row for row in paper_figures()["figures"] if wanted.items() <= row.items()]
    of_methods = {row["method"]: row for row in rows}
    others = [row for row in paper_figures()["others"] if (row["model"], row["seq_len"]) == (model, seq_len)]
    return tuple(of_methods[method] for method in methods if method in of_methods) or tuple(others)


def _left_out(step: TrialStep) -> list[str]:
    """In words, what was added for blocks that were not computed."""
    if not step.left_out_mb:
        return []
    added = " and ".join(f"{name} ({mb:.1f} MB)" for name, mb in step.left_out_mb.items())
    missing = step.blocks_of_model - step.blocks
    return [f"{step.blocks} of {step.blocks_of_model} blocks computed, the {added} of the other {missing} added exactly"]


def _blocks(step: TrialStep) -> dict[str, Any]:
    if not step.left_out_mb:
        return {}
    return {"blocks": step.blocks, "blocks_of_model": step.blocks_of_model, "left_out_mb": step.left_out_mb}
