"""`mesp-gui`, and `python -m app`: the window, with as little as can be before a Ctrl-C is handled."""

import _signal  # what `signal` is made of: built in, where that takes milliseconds to import
import sys

# While modules are imported nothing has been made that would have to be cleaned away: end without a traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> int:
    """Show the window until it is closed; returns the exit code."""
    from app.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
