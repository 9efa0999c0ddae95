"""Replacing a folder whole: at any moment it holds the old content or the new, whatever dies in between. Loads no MLX."""

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WEIGHTS_FILE, CONFIG_FILE = "adapters.safetensors", "adapter_config.json"  # as mlx-lm names them


def half_written(folder: Path) -> str:
    """How the temporary folder beside `folder` begins; folders beside each other must not be taken for one another."""
    return f".{folder.name}-new-"


def previous(folder: Path) -> Path:
    """Where the old content is while the new one gets its name."""
    return folder.with_name(f".{folder.name}-previous")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends well, and is removed when it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=half_written(folder), dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        recover(folder)
        if folder.exists():
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            os.replace(folder, previous(folder))
        try:
            os.replace(temporary, folder)
        except OSError:
            recover(folder)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(previous(folder), ignore_errors=True)


def recover(folder: Path) -> None:
    """Put the old content back if its writer died between taking it away and giving the new one its name."""
    if previous(folder).exists() and not folder.exists():
        os.replace(previous(folder), folder)


def clean_up(folder: Path) -> None:
    """`recover`, then remove what a writer that was killed has left beside `folder`."""
    with contextlib.suppress(OSError):
        recover(folder)
    for left in (previous(folder), *folder.parent.glob(f"{glob.escape(half_written(folder))}*")):
        shutil.rmtree(left, ignore_errors=True)
