"""The entry point of `mesp-gui`. The window does not exist yet."""

import sys


def main() -> int:
    """Say so and return 1."""
    print("mesp-gui: the window is not built yet; use `mesp compare` on the command line.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
