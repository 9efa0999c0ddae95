"""`mesp`, and `python -m mesp_core`: the command line, with as little as can be before a Ctrl-C is handled."""

import signal
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    # While modules are imported nothing has been made that would have to be cleaned away: end without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mesp_core.cli import main
    from mesp_core.interruption import last_block

    with last_block():
        return main()


if __name__ == "__main__":
    sys.exit(main())
