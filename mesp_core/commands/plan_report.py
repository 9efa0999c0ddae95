"""What `mesp plan` shows: each method's predicted memory and time, and whether this machine has the memory.

Loads no MLX and reads no data. How fast this machine is, is measured in a child the first time.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mesp_core.bench.machine_figures import ensure
from mesp_core.commands.terminal import Terminal
from mesp_core.machine.memory import MB, machine_memory
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.source import resolve
from mesp_core.planner import PhasePlan, Plan, in_words, plan, recorded_for, shapes_of
from mesp_core.runs.prepare import check_seq_len
from mesp_core.settings.run_config import RunConfig

FITS, NOT_NOW, DOES_NOT_FIT = "fits", "more than is free", "does not fit"


def report(config: RunConfig, methods: Sequence[str], terminal: Terminal, machine: str | None = None) -> None:
    """Plan every method for a configuration and print the plans: a table, or one JSON object a method.

    `machine`: the name of a recorded one, as which everything is planned; None: this one.

    Raises:
        MespError: UsageError or CheckpointError if the model cannot be had, the machine is not known, or a budget is too
            small.
    """
    checkpoint = open_checkpoint(resolve(config.model, terminal.progress).path)
    check_seq_len(config, checkpoint)
    if machine is None:
        figures = ensure(shapes_of(config, checkpoint), terminal.note)
    else:
        figures = recorded_for(config, checkpoint, machine)
    plans = [plan(config, checkpoint, method, figures) for method in methods]
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
    terminal.say(f"{heading}, {batch}; predicted, in MB and seconds")
    terminal.draw(_table(plans, total, free))
    for chosen in plans:
        if ":budget=" in chosen.method:
            terminal.say(f"{chosen.method}: {in_words(chosen)}")
    terminal.say(f"time on {figures}")
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
        "step_time_s": float(f"{chosen.step_time_s:.4g}"),
        "machine": {name: getattr(chosen.machine, name) for name in ("name", "source", "measured")},
    }


def _table(plans: Sequence[Plan], total: int, free: int) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("method", overflow="fold")
    table.add_column("peak", justify="right")
    table.add_column("peak by phase, and its largest part")
    table.add_column("training memory", justify="right")
    table.add_column("this machine")
    table.add_column("s/step", justify="right")
    for chosen in plans:
        table.add_row(
            Text(chosen.method),
            f"{chosen.allocator_peak / MB:,.1f}",
            Text("\n".join(_phase(phase) for phase in chosen.phases)),
            f"{chosen.training_memory / MB:,.0f}",
            verdict(chosen, total, free),
            f"{chosen.step_time_s:.3g}",
        )
    return table


def _phase(phase: PhasePlan) -> str:
    largest = phase.largest
    return f"{phase.name} {phase.nbytes / MB:,.1f}: {largest.name} {largest.nbytes / MB:,.1f}"


def _mb(nbytes: int) -> float:
    return round(nbytes / MB, 3)
