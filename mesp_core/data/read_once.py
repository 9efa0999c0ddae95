"""Data files that must be taken as they are read: hashed line by line, or copied because they can be read only once."""

import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mesp_core.data.rows import unreadable
from mesp_core.errors import MespError, UsageError
from mesp_core.machine.memory import MB

CHUNK = 1 << 20  # bytes that are read at once
POLL_S = 0.1
LINKS = 40  # as many as the system follows

OnProgress = Callable[[str, float], None]


class HashedLines:
    """The lines of `file`, hashed as they are read."""

    def __init__(self, data: Path, file: BinaryIO) -> None:
        self._data, self.file, self._digest = data, file, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for line in self.file:
            self._digest.update(line)
            yield line

    def sha256(self) -> str:
        """Of the whole file: what was not read yet is read now. Raises UsageError if that fails."""
        while chunk := _read(self._data, self.file):
            self._digest.update(chunk)
        return self._digest.hexdigest()


@contextmanager
def opened(data: Path) -> Iterator[HashedLines]:
    """The lines of `data`. Raises UsageError if it cannot be opened."""
    try:
        file = data.open("rb")
    except (OSError, ValueError) as error:
        raise unreadable(data, error) from None
    with file:
        yield HashedLines(data, file)


@contextmanager
def readable(data: Path, store: Path, on_progress: OnProgress | None = None) -> Iterator[Path]:
    """A file with the content of `data` that can be read many times and by other processes: itself, or a copy in `store`.

    Pipes, process substitutions and /dev/stdin give what they hold only once, and to this process only. The copy is gone
    after the block. `on_progress` is called every 0.1 s while it is made, and may raise to cancel.

    Raises:
        UsageError: it cannot be read, or is a device.
        MespError: the copy cannot be written.
    """
    try:
        mode = data.stat().st_mode
    except (OSError, ValueError):
        yield data  # whoever reads it says what is wrong
        return
    if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not _own_to_us(data)):
        yield data
        return
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not _is_terminal_or_null(data)):
        raise UsageError(f"The data file {data} is a device, which may have no end; name a .jsonl file or a pipe.")
    try:
        store.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".stream-", dir=store))
    except OSError as error:
        raise _no_copy(data, store, error) from None
    try:
        copy = folder / "rows.jsonl"
        _copy(data, copy, on_progress or (lambda message, fraction: None))
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(data: Path, copy: Path, on_progress: OnProgress) -> None:
    """On a thread: opening a pipe that nobody writes to blocks for ever, and cancelling must not."""
    copied, failure, cancelled = 0, None, threading.Event()

    def work() -> None:
        nonlocal copied, failure
        try:
            with opened(data) as source, copy.open("wb") as target:
                while (chunk := _read(data, source.file)) and not cancelled.is_set():
                    target.write(chunk)
                    copied += len(chunk)
        except OSError as error:
            failure = _no_copy(data, copy.parent.parent, error)
        except UsageError as error:
            failure = error

    thread = threading.Thread(target=work, name=f"copy {data}", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            on_progress(f"Reading {data.name}: {copied / MB:.1f} MB so far", 0.0)
            thread.join(POLL_S)
    finally:
        cancelled.set()
        thread.join(POLL_S)  # so that it does not make the copy anew while that is taken away
    if failure is not None:
        raise failure


def _no_copy(data: Path, store: Path, error: OSError) -> MespError:
    reason = error.strerror or error
    return MespError(f"{data} can be read once only, and no copy of it fits into {store} ({reason}). Set MESP_CACHE_DIR.")


def _read(data: Path, source: BinaryIO) -> bytes:
    try:
        return source.read(CHUNK)
    except OSError as error:  # of reading, where those of writing are the cache's
        raise unreadable(data, error) from None


def _own_to_us(data: Path) -> bool:
    """Whether a name leads through /dev or /proc, by itself or by links: there it means another file in another process."""
    path = Path(os.path.abspath(data))
    for _ in range(LINKS):
        for part in (*reversed(path.parents), path):
            if part.parts[:2] in (("/", "dev"), ("/", "proc")):
                return True
            if part.is_symlink():
                path = Path(os.path.abspath(part.parent / part.readlink() / path.relative_to(part)))
                break
        else:
            return False
    return False


def _is_terminal_or_null(data: Path) -> bool:
    with opened(data) as source:
        return source.file.isatty() or data.samefile(os.devnull)
