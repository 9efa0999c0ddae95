"""Asking a short-lived child process for one thing: what loads a tokenizer does so there, not in a window's process.

A tokenizer's memory stays out of the caller, and so does the lock it holds while it loads. The child is a module that calls
`answer`; it reads one JSON object from stdin and writes one JSON line to stdout: the reply, or {"error": the class in
mesp_core.errors, "message": its text}. Loads no MLX.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mesp_core import errors
from mesp_core.errors import MespError
from mesp_core.processes.start import start_module

POLL_S = 0.1


def ask(module: str, request: dict[str, Any], *, task: str, on_wait: Callable[[], None] | None = None) -> dict[str, Any]:
    """The reply of `python -m module` to `request`; `task` says in an error what failed ("Tokenising FILE").

    `on_wait` is called when the child was started and every 0.1 s until it has ended. Whatever it raises comes out of here,
    as a KeyboardInterrupt does, when the child has been ended.

    Raises:
        MespError: what the child raised, with the same class and text; or how it died.
    """
    with start_module(module) as child:
        out, last_words = _talk(child, json.dumps(request), on_wait or (lambda: None))
    try:
        reply = json.loads(out.splitlines()[-1])
        error, message = reply.get("error"), reply.get("message")
    except (IndexError, ValueError, AttributeError):
        last = " / ".join(line.strip() for line in last_words.strip().splitlines()[-3:]) or "it said nothing"
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        raise MespError(f"{task} failed: the process ended with {how}. {last}") from None
    if error:
        raise getattr(errors, error, MespError)(message)
    return reply


def answer(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The child's side: do `work` on the request and send what it returns, or the MespError it raises.

    Any other error ends in a traceback on stderr, whose last lines are what `ask` tells.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever a model folder asks for: nothing is fetched here
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        reply = work(request)
    except MespError as error:
        reply = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(reply))


def _end_with_parent() -> None:
    """Nobody waits for the reply of a child whose stdin has ended."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held while the interpreter ends
        pass
    os._exit(1)


def _talk(child: subprocess.Popen, request: str, on_wait: Callable[[], None]) -> tuple[str, str]:
    """Send the request and wait; all the child wrote on stdout and stderr. Its stdin stays open for as long as we wait.

    Where the wait is broken off, the child is ended, and nothing reads its streams any more.
    """
    said = ["", ""]

    def read(number: int, stream: Any) -> None:
        said[number] = stream.read()

    readers = [threading.Thread(target=read, args=job, daemon=True) for job in enumerate((child.stdout, child.stderr))]
    try:
        for reader in readers:
            reader.start()
        try:
            child.stdin.write(request + "\n")
            child.stdin.flush()
        except OSError:  # it died; what it said last tells why
            with suppress(OSError):
                child.stdin.close()  # once here, as closing tries to send what was not sent, and fails
        on_wait()
        for reader in readers:
            while reader.is_alive():
                reader.join(POLL_S)
                on_wait()
    except BaseException:
        child.kill()
        for reader in readers:
            if reader.ident is not None:  # it was started
                reader.join()
        raise
    child.wait()
    return said[0], said[1]
