"""Importing mlx-lm where few files may be open at once.

At its import mlx-lm asks for a limit of 4096 open files, and fails where the system allows fewer, as under `ulimit -n 1024`.
The limit that there is serves as well.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def limits_as_they_can_be() -> Iterator[None]:
    """For the time of the block, a limit that cannot be set stays what it is."""
    set_limit = resource.setrlimit

    def try_to_set(*arguments: object) -> None:
        with suppress(ValueError, OSError):
            set_limit(*arguments)

    resource.setrlimit = try_to_set
    try:
        yield
    finally:
        resource.setrlimit = set_limit
