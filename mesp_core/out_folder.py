"""The folder a run leaves its results in: claimed before anything is loaded, gone again if the run came to nothing."""

import contextlib
import itertools
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mesp_core.errors import UsageError

RUNS = Path("runs")
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class OutFolder:
    """A folder that can be written to; `made` are those of its ancestors, and itself, that were made for it."""

    path: Path
    made: tuple[Path, ...] = ()

    def release(self) -> None:
        """Remove again what was made and is still empty."""
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def claim_out(out: Path) -> OutFolder:
    """Make the folder and try that it can be written to.

    Raises:
        UsageError: if it cannot be made or written to, or already holds results.
    """
    made: list[Path] = []
    try:
        if (out / RESULTS_FILE).exists():
            raise UsageError(f"out: {out} already holds the results of a run; name another folder.")
        for folder in [*reversed(out.parents), out]:
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):  # another run was faster: then it is not ours to remove
                    folder.mkdir()
                    made.append(folder)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        OutFolder(out, tuple(made)).release()
        raise UsageError(f"out: {out} cannot be written to ({error.strerror}); name another folder.") from error
    return OutFolder(out, tuple(made))


def default_out(base: Path = RUNS) -> OutFolder:
    """`YYYYMMDD-HHMMSS` in `base`, by default `runs` below the working directory; a second one within the second gets a
    number behind it.

    Raises:
        UsageError: if it cannot be made or written to.
    """
    stamp = base / time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        out = stamp if number == 1 else stamp.with_name(f"{stamp.name}-{number}")
        if not os.path.lexists(out) and (folder := claim_out(out)).made[-1:] == (out,):
            return folder
    raise AssertionError("unreachable")
