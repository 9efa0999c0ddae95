"""The folder a run leaves its results in: claimed before anything is loaded, gone again if the run came to nothing.

Only an empty folder is claimed, so nothing that is there can be replaced; and only one run at a time holds a claim.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mesp_core.adapters.folder import OF_THE_SYSTEM, WEIGHTS_FILE
from mesp_core.errors import UsageError
from mesp_core.methods.names import folder_name

RUNS = Path("runs")
RESULTS_FILE = "results.json"
ADAPTER = "adapter"  # a method's adapter, in the method's folder


class Claim:
    """Holds a folder against other runs. The system lets go of it when every process that has `descriptor` open ended.

    A worker inherits it: it may write its adapter when whoever started it is gone.
    """

    def __init__(self, folder: Path) -> None:
        """Raises BlockingIOError if another run holds the folder, OSError if it cannot be opened."""
        self.descriptor: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise
        except OSError:
            pass  # some network file systems lock no folders: then nobody is held off

    def close(self) -> None:
        """Let go of the folder, unless a worker still holds it. Twice does no harm."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


@dataclass(frozen=True)
class OutFolder:
    """A folder that can be written to; `made` are those of its ancestors, itself and its children that were made for it."""

    path: Path
    made: tuple[Path, ...] = ()
    claim: Claim | None = field(default=None, compare=False)

    @property
    def inherited(self) -> tuple[int, ...]:
        """The file descriptors a worker is given, so that it holds the claim too."""
        descriptor = None if self.claim is None else self.claim.descriptor
        return () if descriptor is None else (descriptor,)

    def adapter(self, method: str) -> Path:
        """Where a method's adapter goes."""
        return self.path / folder_name(method) / ADAPTER

    def release(self) -> None:
        """Let go of the claim, and remove again what was made and is still empty. Twice does no harm."""
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if self.claim is not None:
            self.claim.close()


def claim_out(out: Path, methods: Sequence[str] = ()) -> OutFolder:
    """Make the folder, and one in it for each method, and try that all can be written to.

    Raises:
        UsageError: if that cannot be, the folder holds anything, or another run has claimed it.
    """
    with _unmade_on_failure(out) as made:
        _make_with_parents(out, made)
        return _claim(out, methods, made)


def default_out(methods: Sequence[str] = (), base: Path = RUNS) -> OutFolder:
    """`YYYYMMDD-HHMMSS` in `base`, by default `runs` below the working directory; a second one within the second gets a
    number behind it.

    Raises:
        UsageError: if it cannot be made or written to.
    """
    stamp = base / time.strftime("%Y%m%d-%H%M%S")
    with _unmade_on_failure(stamp) as made:
        _make_with_parents(base, made)
        for number in itertools.count(1):
            out = stamp if number == 1 else stamp.with_name(f"{stamp.name}-{number}")
            with contextlib.suppress(FileExistsError):
                out.mkdir()
                made.append(out)
                return _claim(out, methods, made)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _unmade_on_failure(out: Path) -> Iterator[list[Path]]:
    """The list of folders that the block makes; they are removed again if it fails. An OSError becomes a UsageError."""
    made: list[Path] = []
    try:
        yield made
    except BaseException as error:
        OutFolder(out, tuple(made)).release()
        if isinstance(error, OSError):
            raise _unwritable(out, error) from error
        raise


def _make_with_parents(out: Path, made: list[Path]) -> None:
    for folder in [*reversed(out.parents), out]:
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # another run was faster: then it is not ours to remove
                folder.mkdir()
                made.append(folder)


def _claim(out: Path, methods: Sequence[str], made: list[Path]) -> OutFolder:
    """The claim on an existing folder; `made` grows by what is made in it."""
    try:
        str(out.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"out: the name of {out} is not UTF-8 text, as an adapter's has to be; name another.") from None
    try:
        claim = Claim(out)
    except BlockingIOError:
        raise UsageError(f"out: another run is writing to {out}; name another folder, or wait for its end.") from None
    try:
        places = [out / folder_name(method) for method in methods]
        _refuse_what_is_there(out, places)
        for place in places:
            if not place.is_dir():
                place.mkdir()
                made.append(place)
        for folder in (out, *places):
            with tempfile.TemporaryDirectory(dir=folder):  # an adapter is written under a temporary name first
                pass
    except BaseException:
        claim.close()
        raise
    return OutFolder(out, tuple(made), claim)


def _refuse_what_is_there(out: Path, places: Sequence[Path]) -> None:
    """Raises UsageError unless the folder is empty but for empty method folders, which a run that was killed leaves."""
    if (out / RESULTS_FILE).exists():
        raise UsageError(f"out: {out} already holds the results of a run; name another folder.")
    for entry in sorted(out.iterdir()):
        if entry.name in OF_THE_SYSTEM or (entry in places and entry.is_dir() and not any(entry.iterdir())):
            continue
        if (entry / ADAPTER / WEIGHTS_FILE).exists():
            held = f"{entry.name}/{ADAPTER}, the adapter of another run"
        else:
            held = f"{entry.name}, which is not this run's"
        raise UsageError(f"out: {out} holds {held}; name a new or an empty folder.")


def _unwritable(out: Path, error: OSError) -> UsageError:
    reason = os.strerror(error.errno) if error.errno not in (None, errno.EPERM) else error.strerror
    return UsageError(f"out: {out} cannot be written to ({reason}); name another folder.")
