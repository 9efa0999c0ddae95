"""What every command has: its place in the parser, `--json`, `--debug`, and what a signal does to it."""

import argparse
from collections.abc import Callable

from mesp_core.processes.interruption import interruptible

Commands = argparse._SubParsersAction  # what `add_subparsers` gives; argparse has no other name for it


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    *,
    hears_signals: bool = False,
    output_is_the_result: bool = True,
) -> argparse.ArgumentParser:
    """Add a command; returns its parser, for its own options.

    Args:
        run: takes the options and returns the exit code.
        hears_signals: whether the command gives signals a meaning of its own. A signal ends any other.
        output_is_the_result: whether the command has failed if what it prints cannot be written.
    """
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line and nothing else")
    parser.add_argument("--debug", action="store_true", help="print tracebacks")
    parser.set_defaults(
        run=run if hears_signals else interruptible()(run),
        output_is_the_result=output_is_the_result,
    )
    return parser
