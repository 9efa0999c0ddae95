"""What we print to may go away: a terminal is closed, a reader leaves, a disk fills. The work goes on without it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class LastingStream:
    """A text stream whose failure is no error: what nobody can read any more is not written.

    Everything but `write` and `flush` is the wrapped stream's. `lost` is the first failure, None while all goes well.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost: OSError | ValueError | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        """As a stream's."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """As a stream's."""
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Any) -> None:
        if self.lost is not None:
            return
        try:
            act()
        except RuntimeError:
            pass  # a signal's handler speaks in the middle of another write: that one goes on, this text is left out
        except (OSError, ValueError) as error:
            self.lost = error
            # What the stream still holds is written when the process ends, and must not fail there once more.
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)


@contextlib.contextmanager
def lasting_output() -> Iterator[tuple[LastingStream, LastingStream]]:
    """stdout and stderr as lasting streams, for the time of the block."""
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = lasting = LastingStream(before[0]), LastingStream(before[1])
    try:
        yield lasting
    finally:
        for stream in lasting:
            stream.flush()
        sys.stdout, sys.stderr = before


def open_standard_streams() -> None:
    """Give the null device to those of stdin, stdout and stderr that we were started without, as by `>&-`.

    Otherwise the next files that are opened would get their numbers, and be written to by whoever prints.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (as long as we live)
