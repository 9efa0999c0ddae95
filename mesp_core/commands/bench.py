"""The command `mesp bench`. What it needs is imported when it runs."""

import argparse

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.terminal import Terminal
from mesp_core.errors import UsageError

STEPS = 5


def add(commands: Commands) -> None:
    """Add the command and its options."""
    parser = add_command(commands, "bench", run, "measure and print the tables this project is held against")
    parser.add_argument(
        "name", choices=["lean", "plan"], help="lean: memory and time of the methods; plan: step times foretold and measured"
    )
    parser.add_argument(
        "--rows",
        metavar="NAMES",
        help="of lean: comma-separated groups (memory, growth, footprint, time, autodiff) or single rows (default: all)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help=f"timed steps of a method, after a first one (default {STEPS})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of lean: growth with two blocks, the others' share added; without autodiff unless --rows names it",
    )


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns 1 if a bar is missed.

    What is being done goes to stderr, a line at a time: this takes an hour or more. Results that are there when it is ended
    are shown.

    Raises:
        MespError: UsageError for rows or steps that cannot be, another if something cannot be measured.
    """
    if options.steps < 1:
        raise UsageError(f"--steps: {options.steps} is not a number of at least 1.")
    if options.name == "plan":
        return _plan(options)
    from mesp_core.bench.lean import Result, choose, measure
    from mesp_core.commands.bench_table import in_words, show, to_dict

    rows = choose(options.rows, options.quick)
    results: list[Result] = []
    try:
        with Terminal(options.json) as terminal:
            for result in measure(rows, options.steps, terminal.note, terminal.progress):
                results.append(result)
                if options.json:
                    terminal.json(to_dict(result))
                else:
                    terminal.note(in_words(result))
    finally:
        if results and not options.json:
            show(results)
    return 1 if any(result.ok is False for result in results) else 0


def _plan(options: argparse.Namespace) -> int:
    from mesp_core.bench.step_times import compare
    from mesp_core.commands.bench_table import show_step_times

    with Terminal(options.json) as terminal:
        found = []
        for step_time in compare(options.steps, terminal.note):
            found.append(step_time)
            if options.json:
                terminal.json(step_time.to_dict())
        if not options.json:
            show_step_times(found)
    return 0 if all(step_time.ok for step_time in found) else 1
