"""Waiting until what was written to a file is on the disk."""

import errno
import fcntl
import os

# A network's or a memory's file system may not know the request.
_UNKNOWN_THERE = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def to_disk(descriptor: int) -> None:
    """Return when a file's data will outlast a power cut. Raises OSError, for example where the disk is full.

    macOS's `fsync` leaves data in the drive's own cache; only `F_FULLFSYNC` empties that (Apple's fsync(2)).
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in _UNKNOWN_THERE:
                raise
    os.fsync(descriptor)
