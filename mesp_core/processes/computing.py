"""A child process that computes with MLX and replies piece by piece: both sides of the talk. Loads no MLX itself.

The child is a module that calls `serve`. It reads one JSON object from stdin, has BLAS preloaded, and writes one JSON line
for each thing it has found; an error comes as {"error": its text, "usage": whether it is a UsageError}.
"""

import json
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from mesp_core.errors import MespError, UsageError
from mesp_core.processes.start import blas_for_child, start_module

Reply = dict[str, Any]


class Computing:
    """The parent's side, as a context: the child runs inside it. Iterating sends the request and gives the replies.

    Raises:
        MespError: (iterating) what the child raises (UsageError if it is one), or how it died; `task` is named in both.
    """

    def __init__(self, module: str, request: dict[str, Any], task: str) -> None:
        self._module, self._request, self._task = module, request, task

    @property
    def pid(self) -> int:
        """The child's."""
        return self._child.pid

    def __enter__(self) -> Self:
        blas, _ = blas_for_child()
        self._child = start_module(self._module, blas=blas)
        # Read while the child works: a pipe that is full of warnings would stop it.
        self._words: deque[str] = deque(maxlen=3)
        self._reader = threading.Thread(target=lambda: self._words.extend(self._child.stderr), daemon=True)
        self._reader.start()
        return self

    def __iter__(self) -> Iterator[Reply]:
        self._child.stdin.write(json.dumps(self._request) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            reply = json.loads(line)
            if "error" in reply:
                raise (UsageError if reply["usage"] else MespError)(reply["error"])
            yield reply
        if self._child.wait() != 0:
            self._reader.join(1.0)
            told = " / ".join(word.strip() for word in self._words)
            raise MespError(f"{self._task}: the computing process died (exit code {self._child.returncode}). {told}")

    def __exit__(self, *error: object) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            stream.close()


def serve(compute: Callable[[dict[str, Any], Callable[[Reply], None]], Iterator[Reply]], task: str) -> None:
    """The child's side: reply with what `compute(request, reply)` yields, and with what it says through `reply` between."""
    # Libraries may print; only replies go to the parent.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(values: Reply) -> None:
        print(json.dumps(values), file=out, flush=True)

    request = json.loads(sys.stdin.readline())
    # Its end is the parent's, and what is computed may take minutes.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    try:
        for values in compute(request, reply):
            reply(values)
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, MespError)
        message = str(error) if known else f"{task}: unexpected {type(error).__name__}: {error}"
        reply({"error": message, "usage": isinstance(error, UsageError)})
    sys.stderr.flush()
    os._exit(0)  # the thread sits in a read
