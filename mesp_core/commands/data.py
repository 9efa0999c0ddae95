"""The command `mesp data`. What it needs is imported when it runs."""

import argparse
import json

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.options import typed_path
from mesp_core.errors import UsageError


def add(commands: Commands) -> None:
    """Add the command and its options. Its result is the file that it writes."""
    parser = add_command(commands, "data", run, "fetch a data set", output_is_the_result=False)
    parser.add_argument("name", choices=["wikitext2"], help="which one")
    parser.add_argument("--out", type=typed_path, required=True, help="the .jsonl file to write")
    parser.add_argument("--split", choices=["train", "valid", "test"], default="test", help="default test")


def run(options: argparse.Namespace) -> int:
    """Fetch, write, and say how much it is; returns 0.

    Raises:
        MespError: UsageError if the file is there already, another if the data cannot be had.
    """
    from mesp_core.data import wikitext2

    out = options.out
    if out.exists():
        raise UsageError(f"--out: {out} already exists; name another file.")
    rows = wikitext2.build(out, options.split)
    print(json.dumps({"event": "data", "file": str(out), "rows": rows}) if options.json else f"{rows} rows in {out}")
    return 0
