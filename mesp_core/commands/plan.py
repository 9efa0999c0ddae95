"""The command `mesp plan`. The planner, and what shows its plans, is imported when it runs."""

import argparse

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.options import add_run_options, config_of, with_budget
from mesp_core.commands.terminal import Terminal
from mesp_core.methods.names import parse_method, parse_methods

EVERY_METHOD = ("mebp", "mesp", "mesp-store-h", "lean", "lean:inputs=disk", "autodiff", "autodiff:grad-checkpoint")


def add(commands: Commands) -> None:
    """Add the command and its options."""
    summary = "say what memory each method will need, from the model's headers alone"
    parser = add_command(commands, "plan", run, summary)
    parser.add_argument("--methods", help="comma-separated (default: all)")
    parser.add_argument("--budget", metavar="SIZE", help="the fastest plan of lean that fits, for example 200MB")
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
        report(config, methods, terminal)
    return 0


def _methods(options: argparse.Namespace) -> list[str]:
    methods = [spec.key for spec in parse_methods(",".join(EVERY_METHOD) if options.methods is None else options.methods)]
    if options.budget is None:
        return methods
    if options.methods is None:
        methods = [method for method in methods if not method.startswith("lean:")]
    ours = [method for method in methods if parse_method(method).name == "lean"]
    # Without lean among them, the first one is refused, with the reason.
    budgeted = {method: with_budget(method, options.budget) for method in ours or methods[:1]}
    return [budgeted.get(method, method) for method in methods]
