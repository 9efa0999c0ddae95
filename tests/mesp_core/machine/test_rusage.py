"""The layout is that of rusage_info_v4 in XNU's bsd/sys/resource.h; nothing here ran on a Mac."""

import ctypes
import errno
import os
import struct
from types import SimpleNamespace

import pytest

from mesp_core.machine import rusage
from mesp_core.machine.rusage import LibSystem

# Every field has another value, as the system would have written them.
WRITTEN = struct.pack("=16s35Q", b"u" * 16, *range(2**40, 2**40 + 35))


@pytest.mark.parametrize(
    ("field", "byte"),
    [
        ("user_time", 16),
        ("resident_size", 64),
        ("phys_footprint", 72),
        ("proc_exit_abstime", 88),
        ("lifetime_max_phys_footprint", 240),
        ("interval_max_phys_footprint", 280),
        ("runnable_time", 288),
    ],
)
def test_fields_stand_where_the_system_writes_them(field, byte):
    assert rusage.offset(field) == byte
    assert rusage.parse(WRITTEN)[field] == struct.unpack_from("=Q", WRITTEN, byte)[0]


def test_the_struct_is_296_bytes_long():
    assert rusage.SIZE == 296 == len(WRITTEN)


@pytest.mark.parametrize("buffer", [b"", WRITTEN[:-8], WRITTEN + bytes(8)])
def test_a_buffer_of_another_length_is_no_rusage(buffer):
    with pytest.raises(ValueError, match="296"):
        rusage.parse(buffer)


def test_pid_flavor_and_buffer_are_passed():
    def proc_pid_rusage(pid, flavor, buffer):
        assert (pid, flavor) == (77, 4)
        ctypes.memmove(buffer, WRITTEN, len(WRITTEN))
        return 0

    assert LibSystem(SimpleNamespace(proc_pid_rusage=proc_pid_rusage)).rusage(77) == rusage.parse(WRITTEN)


@pytest.mark.parametrize(("code", "error"), [(errno.ESRCH, ProcessLookupError), (errno.EPERM, PermissionError)])
def test_what_errno_says_is_raised(code, error):
    def proc_pid_rusage(pid, flavor, buffer):
        ctypes.set_errno(code)
        return -1

    with pytest.raises(error):
        LibSystem(SimpleNamespace(proc_pid_rusage=proc_pid_rusage)).rusage(77)


@pytest.mark.parametrize(("answer", "done"), [(0, True), (-1, False), (errno.EPERM, False)])
def test_an_interval_is_reset_or_it_is_said_that_it_was_not(answer, done):
    asked = []

    def proc_reset_footprint_interval(pid):
        asked.append(pid)
        return answer

    library = SimpleNamespace(proc_reset_footprint_interval=proc_reset_footprint_interval)
    assert LibSystem(library).reset_footprint_interval(77) is done
    assert asked == [77]


def test_a_system_without_intervals():
    """As ctypes has it: what a library lacks is an attribute it lacks."""
    if hasattr(library := ctypes.CDLL(None), "proc_reset_footprint_interval"):
        pytest.skip("this system has them")
    assert LibSystem(library).reset_footprint_interval(os.getpid()) is False
