"""Replacing a folder whole: at any moment it holds the old content or the new, whatever dies in between. Loads no MLX."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HALF_WRITTEN, PREVIOUS = ".adapter-", ".previous-adapter"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends well, and is removed when it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=HALF_WRITTEN, dir=folder.parent))
    previous = folder.with_name(PREVIOUS)
    try:
        yield temporary
        temporary.chmod(0o755)
        recover(folder)
        if folder.exists():
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            os.replace(folder, previous)
        try:
            os.replace(temporary, folder)
        except OSError:
            recover(folder)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(previous, ignore_errors=True)


def recover(folder: Path) -> None:
    """Put the old content back if its writer died between taking it away and giving the new one its name."""
    previous = folder.with_name(PREVIOUS)
    if previous.exists() and not folder.exists():
        os.replace(previous, folder)


def clean_up(folder: Path) -> None:
    """`recover`, then remove what a writer that was killed has left beside `folder`."""
    with contextlib.suppress(OSError):
        recover(folder)
    for left in (folder.with_name(PREVIOUS), *folder.parent.glob(f"{HALF_WRITTEN}*")):
        shutil.rmtree(left, ignore_errors=True)
