"""A child process of ours, as its parent sees it: what it is asked, what it replies, and how it ended. Loads no MLX.

The parent starts a module and writes a request to its stdin, one line of JSON. The child writes a line of JSON to stdout for
each thing it has found: {"reply": ...}, or {"error": ...} (error_line.py) at its end. stdin stays open for as long as the
parent wants to hear more: its end tells the child that the parent is gone. Whatever else the child prints, on stdout or
stderr, are its last words, of which some lines are kept. The child's side is in child_side.py.
"""

import json
import math
import queue
import resource
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from mesp_core.errors import MespError
from mesp_core.processes.error_line import from_values
from mesp_core.processes.start import start_module

POLL_S = 0.1
LAST_WORDS = 20  # lines that are kept of what is no reply
READERS_S = 1.0  # for the last words of a child that has ended; one of its own children may hold the stream open

Reply = dict[str, Any]


def ask(
    module: str,
    request: dict[str, Any],
    complaint: str,
    on_wait: Callable[[], None] | None = None,
    blas: Path | None = None,
) -> Reply:
    """The one reply of `python -m module` to `request`. See Child for the arguments, and `Child.replies` for errors."""
    with Child(module, blas=blas) as child:
        replies = list(child.replies(request, complaint, on_wait))
        if not replies:
            raise child.died(complaint)
        return replies[0]


def parse_line(line: str) -> dict[str, Any]:
    """A line that a child of `serve` has sent.

    Raises:
        ValueError: if it did not come from there.
    """
    values = json.loads(line)
    if not isinstance(values, dict) or list(values) not in (["reply"], ["error"]):
        raise ValueError(f"not a reply: {line[:200]!r}")
    return values


class Child:
    """A process of its own that runs one of our modules, from here on; as a context, until the end of the block at most.

    Args:
        module: is run as `python -m module`.
        blas: preloaded; for a child that computes.
        inherited: file descriptors that it shall hold too.
        parse: makes of a line what is put into `heard`, at once and on a thread of its own; ValueError: it is none of ours.
        heard: where that is put, and None when no more will come.
    """

    def __init__(
        self,
        module: str,
        *,
        blas: Path | None = None,
        inherited: Sequence[int] = (),
        parse: Callable[[str], Any] = parse_line,
        heard: queue.Queue[Any] | None = None,
    ) -> None:
        self._parse, self._heard = parse, queue.Queue() if heard is None else heard
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._others_s = _processor_time_of_children()
        self._process = start_module(module, blas=blas, inherited=inherited)
        # Read while the child works: a pipe that is full of warnings would stop it.
        self._readers = {
            threading.Thread(target=self._read_replies, daemon=True): self._process.stdout,
            threading.Thread(target=self._read_last_words, daemon=True): self._process.stderr,
        }
        try:
            for reader in self._readers:
                reader.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def printed(self) -> list[str]:
        """The last lines that were no replies."""
        return list(self._last_words)

    def replies(self, request: Reply, complaint: str, on_wait: Callable[[], None] | None = None) -> Iterator[Reply]:
        """Send the request and yield the replies as they come, until the child has ended.

        `complaint` is what an error that is not the child's own begins with ("Tokenising FILE failed"). `on_wait` is called
        at once and every 0.1 s while nothing comes; whatever it raises comes out of here.

        Raises:
            MespError: what the child raised, with the same class and text; or how it died.
        """
        wait = on_wait or (lambda: None)
        self.send(json.dumps(request))
        wait()
        while (said := self._next(wait)) is not None:
            if "error" in said:
                raise from_values(said["error"], complaint)
            yield said["reply"]
        while not self.wait(POLL_S):
            wait()
        if self._process.returncode != 0:
            raise self.died(complaint)

    def send(self, line: str) -> None:
        """Write a line to its stdin.

        It is lost where the child is gone, which its end will tell; and where a signal's handler sends it in the middle of
        another line.
        """
        with suppress(OSError, ValueError, RuntimeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def close(self) -> None:
        """End it, if it has not ended, and give back what it held."""
        self.kill()
        self._process.wait()
        self._join_readers()
        with suppress(OSError):  # what could not be sent is tried once more
            self._process.stdin.close()
        for reader, stream in self._readers.items():
            if not reader.is_alive():  # else its lock is held
                stream.close()

    def died(self, complaint: str) -> MespError:
        """The error that tells of its end."""
        self._join_readers()
        return MespError(f"{complaint}: the process {self.how_it_ended()}.{self.last_words()}")

    def how_it_ended(self) -> str:
        """Once it has: "was killed by SIGKILL...", "ended with exit code 3"."""
        return death(self._process.returncode, _processor_time_of_children() - self._others_s)

    def last_words(self) -> str:
        """A sentence, to put behind another, with the last three lines of `printed`; "" if there are none."""
        lines = [line.strip() for line in self.printed if line.strip()][-3:]
        return f" Its last words: {' / '.join(lines)}" if lines else ""

    def _next(self, wait: Callable[[], None]) -> dict[str, Any] | None:
        while True:
            try:
                return self._heard.get(timeout=POLL_S)
            except queue.Empty:
                wait()

    def _join_readers(self) -> None:
        for reader in self._readers:
            if reader.ident is not None:  # it was started
                reader.join(READERS_S)

    def _read_replies(self) -> None:
        try:
            for line in self._process.stdout:
                try:
                    said = self._parse(line)
                except ValueError:
                    self._last_words.append(line.rstrip("\n"))
                else:
                    self._heard.put(said)
        finally:
            self._heard.put(None)

    def _read_last_words(self) -> None:
        for line in self._process.stderr:
            self._last_words.append(line.rstrip("\n"))


def death(returncode: int, processor_s: float = 0.0) -> str:
    """How a process ended that used so much processor time, in words. A negative code is a signal's number."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else f"signal {-returncode}"
    limit = min(limit for limit in (*resource.getrlimit(resource.RLIMIT_CPU), math.inf) if limit != resource.RLIM_INFINITY)
    if name == "SIGXCPU" or (name == "SIGKILL" and processor_s >= limit - 1):
        return f"was killed by {name}: it used the {limit} s of processor time that the system's limit allows (ulimit -t)"
    reason = {
        "SIGKILL": "; the system does that when memory runs out",
        "SIGABRT": "; Metal does that when memory runs out",
    }
    return f"was killed by {name}{reason.get(name, '')}"


def _processor_time_of_children() -> float:
    """Seconds that the children used which have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
