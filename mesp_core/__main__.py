"""`mesp`, and `python -m mesp_core`: the command line, with as little as can be before a Ctrl-C is handled."""

import _signal  # what `signal` is made of: built in, where that takes milliseconds to import
import sys

# While modules are imported nothing has been made that would have to be cleaned away: end without a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> int:
    """Run the command line; returns the exit code."""
    from mesp_core.commands.cli import main
    from mesp_core.processes.interruption import last_block

    with last_block():
        return main()


if __name__ == "__main__":
    sys.exit(main())
