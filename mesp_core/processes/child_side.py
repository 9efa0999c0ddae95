"""A child's side of the talk with its parent: see parent_side.py for what is said. Loads no MLX.

The child is a module that calls `serve`. One that hears more than a request, as the worker does, uses the other parts.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from mesp_core.processes.error_line import to_values

Request = dict[str, Any]
Say = Callable[[dict[str, Any]], None]


def serve(work: Callable[[Request, Say], None]) -> NoReturn:
    """Do `work` on the request; all it gives to `say` is a reply, and an error that it raises is told."""
    out = only_for_replies()
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever a model folder asks for: nothing is fetched here
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"

    def send(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=out, flush=True)

    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(request, lambda reply: send({"reply": reply}))
    except Exception as error:
        values = to_values(error)
        send({"error": values})
        leave(values["exit_code"])
    leave(0)


def only_for_replies() -> TextIO:
    """The stream to the parent. What a library prints on stdout goes to stderr from now on, not between the replies."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def leave(code: int) -> NoReturn:
    """End the process at once: its daemon threads may sit in a read or write, and there is nothing left to clean up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    """Nobody waits for the replies of a child whose stdin has ended, and its work may take minutes."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held
        pass
    os._exit(1)
