"""The command line `mesp`: train, compare, check, plan, data, bench, doctor. Loads no MLX; that is the workers' job."""

import argparse
import difflib
import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mesp_core import __version__
from mesp_core.commands import bench
from mesp_core.commands.options import add_run_options, config_of, help_text, with_budget
from mesp_core.commands.output import lasting_output
from mesp_core.commands.terminal import Terminal
from mesp_core.errors import MespError, UsageError
from mesp_core.methods.names import parse_method, parse_methods
from mesp_core.processes.interruption import interruptible, unheard
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.events import Error
from mesp_core.settings.run_config import SETTINGS, RunConfig

EVERY_METHOD = ("mebp", "mesp", "mesp-store-h", "lean", "lean:inputs=disk", "autodiff", "autodiff:grad-checkpoint")


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

    train = _command(commands, "train", _train, "fine-tune a model with one method")
    train.add_argument(SETTINGS["method"].flag, help=help_text(SETTINGS["method"]))
    train.add_argument("--budget", metavar="SIZE", help="short for --method lean:budget=SIZE, for example 200MB")
    add_run_options(train)
    _add_out(train)

    compare = _command(
        commands, "compare", _compare, "fine-tune with several methods, one after the other or in turn, and compare"
    )
    compare.add_argument("--methods", default="mebp,mesp", help="comma-separated (default mebp,mesp)")
    compare.add_argument(
        "--interleave",
        action="store_true",
        help="let the methods take turns, a step of each: fair when the machine's speed drifts, "
        "but all methods are in memory at once",
    )
    add_run_options(compare)
    _add_out(compare)

    check = _command(commands, "check", _check, "hold every method's gradients against autodiff")
    check.add_argument(
        "--methods", default="mebp,mesp,mesp-store-h,lean", help="comma-separated (default: all but autodiff)"
    )
    add_run_options(check)

    plan = _command(commands, "plan", _plan, "say what memory each method will need, from the model's headers alone")
    plan.add_argument("--methods", help="comma-separated (default: all)")
    plan.add_argument("--budget", metavar="SIZE", help="the fastest plan of lean that fits, for example 200MB")
    add_run_options(plan)

    data = _command(commands, "data", _data, "fetch a data set")
    data.add_argument("name", choices=["wikitext2"], help="which one")
    data.add_argument("--out", type=Path, required=True, help="the .jsonl file to write")
    data.add_argument("--split", choices=["train", "valid", "test"], default="test", help="default test")

    bench.add_options(_command(commands, "bench", bench.run, "measure and print the tables this project is held against"))
    _command(commands, "doctor", _doctor, "say what device, BLAS, kernels and memory meter are in use")
    return parser


def _command(commands, name: str, run, summary: str) -> argparse.ArgumentParser:  # noqa: ANN001 (argparse's own types)
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line and nothing else")
    parser.add_argument("--debug", action="store_true", help="print tracebacks")
    is_run = run in (_train, _compare)
    parser.set_defaults(
        # A signal ends a command, except for a run, which gives signals a meaning of its own: they ask it to stop.
        run=run if is_run else interruptible()(run),
        output_is_the_result=not is_run and run is not _data,
    )
    return parser


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="folder for results and adapters (default runs/YYYYMMDD-HHMMSS)")


def _train(options: argparse.Namespace) -> int:
    method = options.method
    if options.budget is not None:
        method = with_budget("lean" if method is None else method, options.budget)
    config = config_of(options, **({} if method is None else {"method": method}))
    return _run_methods(options, config, [config.method])


def _compare(options: argparse.Namespace) -> int:
    methods = [spec.key for spec in parse_methods(options.methods)]
    return _run_methods(options, config_of(options, method=methods[0]), methods, options.interleave)


def _run_methods(options: argparse.Namespace, config: RunConfig, methods: list[str], interleave: bool = False) -> int:
    from mesp_core.runs.out_folder import claim_out, default_out
    from mesp_core.runs.prepare import prepare

    with interruptible():
        folder = default_out(methods) if options.out is None else claim_out(_as_typed(options.out), methods)
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
    if any(result.steps for result in comparison.results.methods.values()):
        terminal.table(comparison)
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
    if not any(result.steps for result in comparison.results.methods.values()):
        print(f"{outcome.message} Nothing was learnt, so nothing was saved.", file=sys.stderr)
    return 1 if comparison.problem else 0


def _as_typed(path: Path) -> Path:
    """The path with `~` replaced, and shown as it was typed otherwise."""
    return Path(os.path.expanduser(path))


def _check(options: argparse.Namespace) -> int:
    from mesp_core.bench.gradient_check import run_check
    from mesp_core.runs.prepare import prepare

    methods = [spec.key for spec in parse_methods(options.methods)]
    config = config_of(options)
    with Terminal(options.json) as terminal:
        prepared = prepare(config, terminal.progress)
        results = terminal.check(run_check(config, methods, prepared))
    return 0 if all(result.ok for result in results) else 1


def _plan(options: argparse.Namespace) -> int:
    from mesp_core.commands.plan_report import report

    methods = [spec.key for spec in parse_methods(",".join(EVERY_METHOD) if options.methods is None else options.methods)]
    if options.budget is not None and options.methods is None:
        methods = [method for method in EVERY_METHOD if not method.startswith("lean:")]
    if options.budget is not None:
        ours = [method for method in methods if parse_method(method).name == "lean"]
        # Without lean among them, the first one is refused, with the reason.
        budgeted = {method: with_budget(method, options.budget) for method in ours or methods[:1]}
        methods = [budgeted.get(method, method) for method in methods]
    config = config_of(options, method=methods[0])
    with Terminal(options.json) as terminal:
        report(config, methods, terminal.progress, options.json)
    return 0


def _data(options: argparse.Namespace) -> int:
    from mesp_core.data import wikitext2

    out = _as_typed(options.out)
    if out.exists():
        raise UsageError(f"--out: {out} already exists; name another file.")
    rows = wikitext2.build(out, options.split)
    print(json.dumps({"event": "data", "file": str(out), "rows": rows}) if options.json else f"{rows} rows in {out}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from mesp_core.bench.doctor import examine

    with Terminal(options.json) as terminal:
        terminal.doctor(examine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
