"""The command `mesp compare`: several methods."""

import argparse

from mesp_core.commands.command import Commands
from mesp_core.commands.options import config_of
from mesp_core.commands.running import add_options_of_a_run, add_run, run_methods
from mesp_core.methods.names import parse_methods
from mesp_core.methods.registry import COMPARED


def add(commands: Commands) -> None:
    """Add the command and its options."""
    summary = "fine-tune with several methods, one after the other or in turn, and compare"
    parser = add_run(commands, "compare", run, summary)
    parser.add_argument("--methods", default=",".join(COMPARED), help="comma-separated (default %(default)s)")
    parser.add_argument(
        "--interleave",
        action="store_true",
        help="let the methods take turns, a step of each: fair when the machine's speed drifts, "
        "but all methods are in memory at once",
    )
    add_options_of_a_run(parser)


def run(options: argparse.Namespace) -> int:
    """Compare; returns the exit code.

    Raises:
        MespError: if what is asked for cannot be, or the run cannot begin.
    """
    methods = [spec.key for spec in parse_methods(options.methods)]
    return run_methods(options, config_of(options, method=methods[0]), methods, options.interleave)
