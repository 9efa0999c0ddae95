"""When arrays are evaluated: the one place of the project that decides it.

MLX is lazy, so memory is a matter of when something is evaluated. The CPU is told at each end of a stage, and done when
`mx.eval` returns. A GPU works beside us, and each wait for it costs 150 to 200 µs in which it may run dry. It is handed
pieces of work, two of which may be under way: one that runs and one behind it. A third waits until the first is done.

    piece    the end of a piece of work, after which what the piece no longer needs can go
    settle   a point within a piece at which the CPU saves memory; a GPU goes on
    needed   the values are about to be read: everything is waited for

A GPU may hold what a piece reads until a little after the piece is done. So nobody relies on an array being written in place
there, see gathered.py.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import mlx.core as mx

from mesp_core.device.in_use import on_gpu

IN_FLIGHT = 2  # pieces

Watcher = Callable[[tuple], None]


@dataclass
class Counts:
    """Since `reset`: pieces handed over, waits, waits with nothing queued behind (drains), bytes copied from files."""

    pieces: int = 0
    waits: int = 0
    drains: int = 0
    file_bytes: int = 0


_counts = Counts()
_marks: deque[mx.array] = deque()  # one for each piece that may be under way, done when the piece is
_watchers: list[Watcher] = []


def piece(*arrays: object) -> None:
    """Hand over the work that makes these arrays (arrays, or trees of them); returns before it is done on a GPU."""
    _tell(arrays)
    _counts.pieces += 1
    if not on_gpu():
        _counts.waits += 1
        _counts.drains += 1
        mx.eval(arrays)
        return
    while len(_marks) >= IN_FLIGHT:
        _wait()
    # An array of its own: one of the piece's would be held by being waited for.
    mark = mx.arange(1, dtype=mx.uint8)
    mx.async_eval(arrays, mark)
    _marks.append(mark)


def settle(*arrays: object) -> None:
    """Evaluate now on the CPU what would otherwise be made beside what it goes into."""
    if not on_gpu():
        piece(*arrays)


def needed(*arrays: object) -> None:
    """Evaluate, and wait until it is done: the values are read next."""
    _tell(arrays)
    _counts.waits += 1
    _counts.drains += 1
    mx.eval(arrays)
    _marks.clear()


def joined(parts: list[mx.array], axis: int = 0) -> mx.array:
    """The parts one behind the other along an axis, as a piece of work. Empties `parts`."""
    if len(parts) == 1:
        return parts.pop()
    whole = mx.concatenate(parts, axis=axis)
    parts.clear()
    piece(whole)
    return whole


def copied_from_file(nbytes: int) -> None:
    """So many bytes were read from a file into arrays."""
    _counts.file_bytes += nbytes


def counts() -> Counts:
    """What has been counted since the process began; two of these have a difference."""
    return replace(_counts)


def reset_counts() -> None:
    """Count from 0."""
    _counts.__init__()


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """`watcher` is told inside of all that is handed over, before it is."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _tell(arrays: tuple) -> None:
    for watcher in _watchers:
        watcher(arrays)


def _wait() -> None:
    """Wait for the oldest piece. Who is called with one more under way lets the device go on."""
    _counts.waits += 1
    _counts.drains += len(_marks) == 1
    mx.eval(_marks.popleft())
