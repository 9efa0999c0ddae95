"""The command `mesp check`: every method's gradients, held against autodiff."""

import argparse
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mesp_core.bench.gradient_check import CheckResult, run_check
from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.options import add_run_options, config_of
from mesp_core.commands.terminal import Terminal
from mesp_core.methods.names import parse_methods
from mesp_core.methods.registry import CHECKED
from mesp_core.runs.prepare import prepare


def add(commands: Commands) -> None:
    """Add the command and its options."""
    parser = add_command(commands, "check", run, "hold every method's gradients against autodiff")
    parser.add_argument("--methods", default=",".join(CHECKED), help="comma-separated (default: all but autodiff)")
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Check and print; returns 1 if a gradient is out of bounds.

    Raises:
        MespError: if what is asked for cannot be, or a method cannot be run.
    """
    methods = [spec.key for spec in parse_methods(options.methods)]
    config = config_of(options)
    with Terminal(options.json) as terminal:
        prepared = prepare(config, terminal.progress)
        results = show(run_check(config, methods, prepared), terminal)
    return 0 if all(result.ok for result in results) else 1


def show(results: Iterable[CheckResult], terminal: Terminal) -> list[CheckResult]:
    """Show each method's check as it comes; returns all."""
    seen = []
    headings = ("method", "loss", "loss difference", "gradient difference", "worst tensor", "which", "verdict")
    table = Table(*headings, box=SIMPLE_HEAD)
    for result in results:
        seen.append(result)
        if terminal.as_json:
            terminal.json(result.to_dict())
        table.add_row(
            Text(result.method),
            f"{result.loss:.6f}",
            f"{result.loss_difference:.1e}",
            f"{result.gradient_difference:.1e}",
            f"{result.worst_tensor_difference:.1e}",
            Text(result.worst_tensor.removeprefix("model.")),
            "ok" if result.ok else "OUT OF BOUNDS",
        )
    if seen and not terminal.as_json:
        terminal.draw(table)
        whole, tensor, loss = seen[0].bounds
        terminal.say(
            f"relative to {seen[0].judge}; activations {seen[0].dtype}, {seen[0].tensors} tensors. "
            f"Bounds: whole gradient {whole:g}, any tensor {tensor:g}, loss {loss:g}."
        )
    return seen
