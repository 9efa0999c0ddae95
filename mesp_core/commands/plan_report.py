"""What `mesp plan` shows: each method's predicted memory, and whether this machine has it. Loads no MLX, reads no data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mesp_core.commands.terminal import Terminal
from mesp_core.machine.memory import MB, machine_memory
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.source import resolve
from mesp_core.planner import PhasePlan, Plan, in_words, plan
from mesp_core.runs.prepare import check_seq_len
from mesp_core.settings.run_config import RunConfig

FITS, NOT_NOW, DOES_NOT_FIT = "fits", "more than is free", "does not fit"


def report(config: RunConfig, methods: Sequence[str], terminal: Terminal) -> None:
    """Plan every method for a configuration and print the plans: a table, or one JSON object a method.

    Raises:
        MespError: UsageError or CheckpointError if the model cannot be had, or a budget is too small.
    """
    checkpoint = open_checkpoint(resolve(config.model, terminal.progress).path)
    check_seq_len(config, checkpoint)
    plans = [plan(config, checkpoint, method) for method in methods]
    total, free = machine_memory()
    if terminal.as_json:
        for chosen in plans:
            terminal.json(to_dict(chosen, total, free))
        return
    bits = f"{checkpoint.bits}-bit" if checkpoint.bits else checkpoint.float_dtype
    heading = (
        f"{config.model} ({checkpoint.architecture.model_type}, {checkpoint.parameters / 1e6:.1f} M parameters, {bits})"
    )
    batch = f"{config.batch_size} × {config.seq_len} tokens, rank {config.rank}, {config.optimizer}"
    terminal.say(f"{heading}, {batch}; predicted, in MB, time as a multiple of lean's")
    terminal.draw(_table(plans, total, free))
    for chosen in plans:
        if ":budget=" in chosen.method:
            terminal.say(f"{chosen.method}: {in_words(chosen)}")
    terminal.say(f"this machine: {total / MB:,.0f} MB of memory, {free / MB:,.0f} MB free")


def verdict(chosen: Plan, total: int, free: int) -> str:
    """Whether a machine with so many bytes of memory, and so many free, has room for the run."""
    if chosen.fits(free):
        return FITS
    return NOT_NOW if chosen.fits(total) else DOES_NOT_FIT


def to_dict(chosen: Plan, total: int, free: int) -> dict[str, Any]:
    """A plan as `--json` prints it; sizes in MB."""
    return {
        "event": "plan",
        "method": chosen.method,
        "allocator_peak_mb": _mb(chosen.allocator_peak),
        "allocator_peak_by_phase_mb": {phase.name: _mb(phase.nbytes) for phase in chosen.phases},
        "parts_by_phase_mb": {phase.name: {p.name: _mb(p.nbytes) for p in phase.parts} for phase in chosen.phases},
        "training_memory_mb": _mb(chosen.training_memory),
        "fits": chosen.fits(free),
        "verdict": verdict(chosen, total, free),
        "machine_total_mb": _mb(total),
        "machine_free_mb": _mb(free),
        "inputs": chosen.inputs,
        "keep": None if chosen.keep is None else dataclasses.asdict(chosen.keep),
        "relative_time": None if chosen.relative_time is None else round(chosen.relative_time, 4),
    }


def _table(plans: Sequence[Plan], total: int, free: int) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("method", overflow="fold")
    table.add_column("peak", justify="right")
    table.add_column("peak by phase, and its largest part")
    table.add_column("training memory", justify="right")
    table.add_column("this machine")
    table.add_column("time", justify="right")
    for chosen in plans:
        time = "" if chosen.relative_time is None else f"{chosen.relative_time:.2f}"
        table.add_row(
            Text(chosen.method),
            f"{chosen.allocator_peak / MB:,.1f}",
            Text("\n".join(_phase(phase) for phase in chosen.phases)),
            f"{chosen.training_memory / MB:,.0f}",
            verdict(chosen, total, free),
            time,
        )
    return table


def _phase(phase: PhasePlan) -> str:
    largest = phase.largest
    return f"{phase.name} {phase.nbytes / MB:,.1f}: {largest.name} {largest.nbytes / MB:,.1f}"


def _mb(nbytes: int) -> float:
    return round(nbytes / MB, 3)
