"""What `mesp train` and `mesp compare` do alike: methods are run, followed to their end, and what came of them is told."""

import argparse
import sys
from collections.abc import Callable, Sequence

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.options import add_run_options, typed_path
from mesp_core.commands.terminal import Terminal
from mesp_core.processes.interruption import interruptible
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.out_folder import claim_out, default_out
from mesp_core.runs.prepare import prepare
from mesp_core.settings.run_config import RunConfig


def add_run(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    """Add a command that runs methods. It hears signals itself: they ask a run to stop, which then saves."""
    return add_command(commands, name, run, summary, hears_signals=True, output_is_the_result=False)


def add_options_of_a_run(parser: argparse.ArgumentParser) -> None:
    """All that a run is, and where its results go."""
    add_run_options(parser)
    parser.add_argument("--out", type=typed_path, help="folder for results and adapters (default runs/YYYYMMDD-HHMMSS)")


def run_methods(options: argparse.Namespace, config: RunConfig, methods: Sequence[str], interleave: bool = False) -> int:
    """Prepare, run the methods, show how it goes and say what came of it; returns the exit code.

    Raises:
        MespError: if it cannot begin.
    """
    with interruptible():
        folder = default_out(methods) if options.out is None else claim_out(options.out, methods)
    try:
        with Terminal(options.json) as terminal:
            with interruptible():
                prepared = prepare(config, terminal.progress)
                terminal.begin(config, prepared)
            comparison = Comparison(config, methods, prepared, folder, interleave)
            terminal.follow(comparison)
            return _tell_outcome(options, terminal, comparison)
    finally:
        folder.release()


def _tell_outcome(options: argparse.Namespace, terminal: Terminal, comparison: Comparison) -> int:
    outcome = comparison.outcome
    learnt = any(result.steps for result in comparison.results.methods.values())
    if learnt:
        terminal.summary(comparison)
    if comparison.problem:
        print(f"mesp: {comparison.problem}", file=sys.stderr)
    if outcome is None:
        print("Stopped before the first step.", file=sys.stderr)
        return 0
    if not outcome.ok:
        if options.debug and outcome.details:
            print(outcome.details, file=sys.stderr)
        print(outcome.message, file=sys.stderr)
        return outcome.exit_code or 1
    if not learnt:
        print(f"{outcome.message} Nothing was learnt, so nothing was saved.", file=sys.stderr)
    return 1 if comparison.problem else 0
