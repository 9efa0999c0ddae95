"""The command line `mesp`: its parser, what it says of errors, its exit codes. Each command has a file of its own.

Loads no MLX; that is the workers' job.
"""

import argparse
import difflib
import errno
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from mesp_core import __version__
from mesp_core.commands import bench, check, compare, data, doctor, plan, train
from mesp_core.commands.output import lasting_output
from mesp_core.errors import MespError, UsageError
from mesp_core.processes.interruption import interruptible, unheard
from mesp_core.runs.events import Error

COMMANDS = (train, compare, check, plan, data, bench, doctor)  # as --help lists them


class _Parser(argparse.ArgumentParser):
    """argparse, but its complaints are ours: a UsageError in one line instead of the whole usage text."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See {self.prog} --help.")

    def parse_known_args(self, args=None, namespace=None):  # noqa: ANN001 (as argparse has it)
        """Refuse what is unknown here, where the command and its options are known; argparse does at the top."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], self._option_string_actions, n=1)
            self.error(f"there is no {unknown[0]!r} here" + (f"; did you mean {near[0]}?" if near else ""))
        return found, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a failure, 2 for a usage error.

    A reader of our output that leaves changes nothing. An output that fails (a full disk) ends no work either, but a
    command of which it is the whole result has then failed.
    """
    with lasting_output() as (out, _):
        code, output_is_the_result = _run(list(sys.argv[1:] if arguments is None else arguments))
        out.flush()
        if out.lost is not None and not isinstance(out.lost, BrokenPipeError):
            reason = getattr(out.lost, "strerror", None) or out.lost
            print(f"mesp: the output could not be written whole ({reason}).", file=sys.stderr)
            if output_is_the_result:
                return code or 1
        return code


def _run(arguments: list[str]) -> tuple[int, bool]:
    """(exit code, whether what is printed is the command's whole result).

    Signals interrupt parsing, preparing, and every command that is no run. A run hears them while it is followed. Once it
    has ended, a signal changes nothing about its exit code.
    """
    debug, output_is_the_result = "--debug" in arguments, False
    try:
        with unheard():
            with interruptible():
                options = _parser().parse_args(arguments)
                output_is_the_result = options.output_is_the_result
            return options.run(options), output_is_the_result
    except MespError as error:
        if debug:
            traceback.print_exc()
        if "--json" in arguments:
            print(Error("", error.kind, str(error), error.exit_code).to_json())
        print(f"mesp: {error}", file=sys.stderr)
        return error.exit_code, output_is_the_result
    except SystemExit as ended:  # argparse has printed its help or the version
        return int(ended.code or 0), True
    except KeyboardInterrupt:
        print("mesp: interrupted.", file=sys.stderr)
    except Exception as error:
        if debug:
            traceback.print_exc()
        problem = f"unexpected {type(error).__name__}: {error}. Run again with --debug for details."
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            problem = "more files are needed than may be open at once here. Allow more, with `ulimit -n 256`, and run again."
        print(f"mesp: {problem}", file=sys.stderr)
    return 1, output_is_the_result


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mesp", description="Exact, low-memory LoRA fine-tuning of language models, made visible.")
    parser.add_argument("--version", action="version", version=f"mesp {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
