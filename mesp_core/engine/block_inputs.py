"""Where the block inputs of a step stand between its forward and its backward: in memory, or in a scratch file.

They are a stack: the forward pushes each block's input, the backward pops them, last block first.
"""

import contextlib
import errno
import math
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

import mlx.core as mx

from mesp_core.device.evaluation import needed, piece, settle
from mesp_core.errors import MespError, UsageError
from mesp_core.files.cache import cache_dir
from mesp_core.files.user_path import user_path
from mesp_core.machine.memory import MB

PREFIX = "block-inputs-"  # of a scratch file's name; the process follows
IN_MEMORY = ("tmpfs", "ramfs")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ELSEWHERE = "Name another folder with --scratch-dir."
CHUNK = 2**30  # bytes in one call; macOS takes fewer than 2**31


class BlockInputs(Protocol):
    """A stack of arrays, empty between steps."""

    def push(self, x: mx.array) -> None:
        """Evaluate x, of any shape, in a float type, and keep it."""
        ...

    def pop(self) -> mx.array:
        """The last array pushed and not popped yet, evaluated, exactly as it was; the stack lets go of it."""
        ...

    def clear(self) -> None:
        """Let go of all, after a step that broke off."""
        ...

    def close(self) -> None:
        """Give back what the stack holds; it is not used again."""
        ...


class InMemory:
    """Block inputs as arrays."""

    def __init__(self) -> None:
        self._arrays: list[mx.array] = []

    def push(self, x: mx.array) -> None:
        """See BlockInputs."""
        piece(x)
        self._arrays.append(x)

    def pop(self) -> mx.array:
        """See BlockInputs."""
        return self._arrays.pop()

    def clear(self) -> None:
        """See BlockInputs."""
        self._arrays.clear()

    def close(self) -> None:
        """See BlockInputs."""
        self.clear()


class _Entry(NamedTuple):
    """An array in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


class OnDisk:
    """Block inputs in a scratch file in `folder`, which is made if it is missing; between push and pop no memory holds them.

    The file has no name from the start, so it is gone with the process however that ends. Where a file system keeps the
    name of an open file, it goes in `close`, or else when the next stack is made in that folder.
    `pushes`: arrays in a step, if known. Room for so many is claimed at the first push, so that a disk which is too small
    says so then. `holds` is what the arrays are, in words.

    Raises:
        UsageError: if the folder cannot be made or written to, or lies in memory and `allow_tmpfs` is false.
        MespError (push, pop): if the disk is full or fails.
    """

    def __init__(
        self, folder: Path, allow_tmpfs: bool = False, pushes: int = 1, holds: str = "The block inputs of a step"
    ) -> None:
        self.folder, self._pushes, self._holds = folder, pushes, holds
        self._entries: list[_Entry] = []
        self._claimed = 0  # bytes
        try:
            kind = file_system(next(path for path in (folder, *folder.parents) if path.exists()))
            if kind in IN_MEMORY and not allow_tmpfs:
                raise UsageError(
                    f"scratch_dir: {folder} is on a {kind}, which is memory. Name a folder on a disk with --scratch-dir, "
                    "or add the option tmpfs to the method."
                )
            folder.mkdir(parents=True, exist_ok=True)
            _remove_left_over(folder)
            self._path = folder / f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
            self._file = open(self._path, "x+b", buffering=0, opener=_private)  # noqa: SIM115 (open until `close`)
        except (OSError, ValueError) as error:
            raise UsageError(f"scratch_dir: {folder} cannot be written to ({_reason(error)}). {ELSEWHERE}") from error
        with contextlib.suppress(OSError):
            self._path.unlink()

    def push(self, x: mx.array) -> None:
        """See BlockInputs."""
        entry = _Entry(self._end(), x.shape, x.dtype)
        # What the step will need if the arrays to come are as large as this one.
        wanted = entry.offset + entry.nbytes * max(1, self._pushes - len(self._entries))
        needed(x)
        with memoryview(x) as view:
            plain = x if view.c_contiguous else mx.contiguous(x)  # a part of another array
        needed(plain)
        try:
            if entry.offset + entry.nbytes > self._claimed:
                self._claim(wanted)
            with memoryview(plain) as view, view.cast("B") as data:
                done = 0
                while done < entry.nbytes:
                    done += os.pwrite(self._file.fileno(), data[done : done + CHUNK], entry.offset + done)
        except (OSError, ValueError) as error:
            raise self._failure(error, wanted) from error
        self._entries.append(entry)

    def pop(self) -> mx.array:
        """See BlockInputs."""
        entry = self._entries.pop()
        plain = mx.empty((entry.nbytes,), mx.uint8)
        needed(plain)
        try:
            # Straight into the array's own memory: no mapping to grow with the file, no copy in between.
            with memoryview(plain) as data:
                done = 0
                while done < entry.nbytes:
                    read = os.preadv(self._file.fileno(), [data[done : done + CHUNK]], entry.offset + done)
                    if not read:
                        raise OSError(errno.EIO, "it is shorter than it was")
                    done += read
        except (OSError, ValueError) as error:
            raise MespError(f"The scratch file in {self.folder} cannot be read ({_reason(error)}). {ELSEWHERE}") from error
        x = plain.view(entry.dtype).reshape(entry.shape)
        settle(x)
        return x

    def clear(self) -> None:
        """See BlockInputs."""
        self._entries.clear()

    def close(self) -> None:
        """See BlockInputs. Twice does no harm."""
        self.clear()
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _end(self) -> int:
        return self._entries[-1].offset + self._entries[-1].nbytes if self._entries else 0

    def _claim(self, size: int) -> None:
        """Make sure of the file's first `size` bytes, where the system can.

        Raises:
            OSError: if there is no room for them.
        """
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._file.fileno(), 0, size)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise
        elif self._room() < size - self._claimed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._claimed = size

    def _room(self) -> int:
        """Bytes that are free for us on the file system."""
        found = os.fstatvfs(self._file.fileno())
        return found.f_bavail * found.f_frsize

    def _failure(self, error: Exception, wanted: int) -> MespError:
        if getattr(error, "errno", None) not in NO_ROOM:
            return MespError(f"The scratch file in {self.folder} cannot be written ({_reason(error)}). {ELSEWHERE}")
        return MespError(
            f"{self._holds} need {wanted / MB:,.1f} MB in {self.folder}, {self._room() / MB:,.1f} MB are free "
            f"({_reason(error)}). Make room, or name another folder with --scratch-dir."
        )


def scratch_folder(scratch_dir: str) -> Path:
    """The folder that RunConfig's `scratch_dir` stands for."""
    return user_path(scratch_dir) if scratch_dir else cache_dir() / "scratch"


def file_system(folder: Path) -> str:
    """The type of the file system a folder is on, such as ext4, apfs or tmpfs; "" if it cannot be told."""
    if sys.platform == "linux":
        device = os.stat(folder).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                mount, _, source = line.partition(" - ")
                if mount.split()[2] == number:
                    return source.split()[0]
        return ""
    import psutil  # not at the top: the worker need not carry it

    path = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""


def _private(path: str, flags: int) -> int:
    """Opens for the owner alone: what was learnt from can be read out of block inputs."""
    return os.open(path, flags, 0o600)


def _remove_left_over(folder: Path) -> None:
    """Remove scratch files whose process is gone."""
    for file in folder.iterdir():
        if match := re.fullmatch(rf"{PREFIX}([0-9]{{1,9}})-[0-9a-f]{{12}}", file.name):
            try:
                os.kill(int(match[1]), 0)  # sends nothing
            except ProcessLookupError:
                with contextlib.suppress(OSError):
                    file.unlink()
            except OSError:  # somebody else's process
                pass


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
