"""Replacing an adapter's folder: at any moment it holds the old adapter or the new, whatever dies in between. Loads no MLX.

Only an adapter's own files are ever removed. Whatever else somebody has put into the folder stays there.
"""

import contextlib
import errno
import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WEIGHTS_FILE, CONFIG_FILE = "adapters.safetensors", "adapter_config.json"  # as mlx-lm names them
OURS = (WEIGHTS_FILE, CONFIG_FILE)
OF_THE_SYSTEM = (".DS_Store",)  # the Finder writes it into any folder a person has looked at


def half_written(folder: Path) -> str:
    """How the temporary folder beside `folder` begins; folders beside each other must not be taken for one another."""
    return f".{folder.name}-new-"


def previous(folder: Path) -> Path:
    """Where the old content is while the new one gets its name."""
    return folder.with_name(f".{folder.name}-previous")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends well, and is removed when it fails.

    The block writes files of OURS into it. What else is in `folder` is in the new one too.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=half_written(folder), dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        recover(folder)
        if os.path.lexists(folder):
            if folder.is_symlink() or not folder.is_dir():  # what a link points to is somebody else's
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            os.replace(folder, previous(folder))
        try:
            os.replace(temporary, folder)
        except OSError:
            recover(folder)
            raise
    finally:
        _discard(temporary)
        if folder.exists():
            _retire(folder)


def recover(folder: Path) -> None:
    """Put the old content back if its writer died between taking it away and giving the new one its name."""
    if previous(folder).exists() and not folder.exists():
        os.replace(previous(folder), folder)


def clean_up(folder: Path) -> None:
    """`recover`, then remove what a writer that was killed has left beside `folder`."""
    with contextlib.suppress(OSError):
        recover(folder)
    if folder.is_dir():
        _retire(folder)
    for left in folder.parent.glob(f"{glob.escape(half_written(folder))}*"):
        _discard(left)


def _retire(folder: Path) -> None:
    """Remove the previous folder; what is not an adapter's moves into `folder`, under another name if its own is taken."""
    old = previous(folder)
    with contextlib.suppress(OSError):
        for entry in old.iterdir():
            if entry.name in OURS:
                continue
            kept = folder / entry.name
            while os.path.lexists(kept):
                kept = kept.with_name(f"{kept.name}~")
            os.rename(entry, kept)
        _discard(old)


def _discard(folder: Path) -> None:
    """Remove an adapter's files and then the folder, if that was all."""
    for name in OURS:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
