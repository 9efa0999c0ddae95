"""The command `mesp plan`. The planner, and what shows its plans, is imported when it runs."""

import argparse

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.options import add_run_options, config_of, with_budget
from mesp_core.commands.terminal import Terminal
from mesp_core.methods.names import parse_methods
from mesp_core.methods.registry import PLANNED


def add(commands: Commands) -> None:
    """Add the command and its options."""
    summary = "say what memory and time each method will need, from the model's headers alone"
    parser = add_command(commands, "plan", run, summary)
    parser.add_argument("--methods", help="comma-separated (default: all)")
    parser.add_argument("--budget", metavar="SIZE", help="the fastest plan of lean that fits, for example 200MB")
    parser.add_argument(
        "--machine", metavar="NAME", help="another than this one, from recorded figures: m1, m4max, a18pro and others"
    )
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Plan and print; returns 0.

    Raises:
        MespError: if what is asked for cannot be, or the model cannot be had.
    """
    from mesp_core.commands.plan_report import report

    methods = _methods(options)
    config = config_of(options, method=methods[0])
    with Terminal(options.json) as terminal:
        report(config, methods, terminal, options.machine)
    return 0


def _methods(options: argparse.Namespace) -> list[str]:
    specs = parse_methods(",".join(PLANNED) if options.methods is None else options.methods)
    if options.budget is None:
        return [spec.key for spec in specs]
    if options.methods is None:  # of those that can have a budget, the plain one gets it
        specs = [spec for spec in specs if not (spec.record.has_budget and spec.options)]
    able = [spec.key for spec in specs if spec.record.has_budget]
    # Without such a one among them, the first one is refused, with the reason.
    budgeted = {method: with_budget(method, options.budget) for method in able or [specs[0].key]}
    return [budgeted.get(spec.key, spec.key) for spec in specs]
