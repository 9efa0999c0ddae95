"""fcntl and fsync are stood in for: what a disk does in a power cut cannot be tried here."""

import errno
import fcntl
import os

import pytest

from mesp_core.files.durable import to_disk

FULL = 51  # F_FULLFSYNC on macOS


@pytest.fixture
def asked(monkeypatch):
    """Which requests were made, in order, on a system whose fsync works."""
    requests = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: requests.append(("fsync", descriptor)))
    return requests


def answer_full(monkeypatch, asked, code):
    """A macOS whose F_FULLFSYNC is refused with `code`; 0: it works."""

    def request(descriptor, command):
        asked.append((command, descriptor))
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", request)


def test_macos_empties_the_drives_cache(monkeypatch, asked):
    answer_full(monkeypatch, asked, 0)
    to_disk(7)
    assert asked == [(FULL, 7)]


def test_elsewhere_fsync_does(monkeypatch, asked):
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    to_disk(7)
    assert asked == [("fsync", 7)]


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_does_not_know_the_request_gets_fsync(monkeypatch, asked, code):
    answer_full(monkeypatch, asked, code)
    to_disk(7)
    assert asked == [(FULL, 7), ("fsync", 7)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EBADF])
def test_a_disk_that_fails_is_an_error(monkeypatch, asked, code):
    answer_full(monkeypatch, asked, code)
    with pytest.raises(OSError) as raised:
        to_disk(7)
    assert raised.value.errno == code and asked == [(FULL, 7)]


def test_a_real_file(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.write(b"data")
        file.flush()
        to_disk(file.fileno())
