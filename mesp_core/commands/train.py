"""The command `mesp train`: one method."""

import argparse

from mesp_core.commands.command import Commands
from mesp_core.commands.options import config_of, help_text, with_budget
from mesp_core.commands.running import add_options_of_a_run, add_run, run_methods
from mesp_core.settings.run_config import SETTINGS


def add(commands: Commands) -> None:
    """Add the command and its options."""
    parser = add_run(commands, "train", run, "fine-tune a model with one method")
    parser.add_argument(SETTINGS["method"].flag, help=help_text(SETTINGS["method"]))
    parser.add_argument("--budget", metavar="SIZE", help="short for --method lean:budget=SIZE, for example 200MB")
    add_options_of_a_run(parser)


def run(options: argparse.Namespace) -> int:
    """Train; returns the exit code.

    Raises:
        MespError: if what is asked for cannot be, or the run cannot begin.
    """
    method = options.method
    if options.budget is not None:
        method = with_budget(method, options.budget)
    config = config_of(options, **({} if method is None else {"method": method}))
    return run_methods(options, config, [config.method])
