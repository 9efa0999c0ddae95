import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mesp_core.machine import memory
from mesp_core.machine.memory import (
    MB,
    Footprint,
    Meter,
    ProcStatusReader,
    PsutilReader,
    RusageReader,
    machine_memory,
    meter_name,
    parse_proc_status,
    parse_rusage_v4,
    read_footprint,
)

# Evaluates one line of Python after another and answers each, so that a test decides when memory is touched and freed.
CHILD = """
import mmap, sys

def touch(n):
    held = bytearray(n)
    for i in range(0, n, 4096):
        held[i] = 1
    return held

def map_file(path):
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[i] for i in range(0, len(mapped), 4096))
    return mapped

names = {"touch": touch, "map_file": map_file}
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
"""


class Child:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout.readline() == "ready\n"

    def do(self, statement):
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def kill(self):
        self._process.kill()

    def end(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def child():
    child = Child()
    child.do("pass")
    yield child
    child.end()


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def sampling_thread(pid):
    return next((t for t in threading.enumerate() if t.name == f"footprint of {pid}"), None)


# --- macOS ---


Rusage = namedtuple(
    "Rusage",
    "user_time system_time pkg_idle_wkups interrupt_wkups pageins wired_size resident_size phys_footprint "
    "proc_start_abstime proc_exit_abstime child_user_time child_system_time child_pkg_idle_wkups "
    "child_interrupt_wkups child_pageins child_elapsed_abstime diskio_bytesread diskio_byteswritten "
    "cpu_time_qos_default cpu_time_qos_maintenance cpu_time_qos_background cpu_time_qos_utility "
    "cpu_time_qos_legacy cpu_time_qos_user_initiated cpu_time_qos_user_interactive billed_system_time "
    "serviced_system_time logical_writes lifetime_max_phys_footprint instructions cycles billed_energy "
    "serviced_energy interval_max_phys_footprint runnable_time",
    defaults=range(1000, 1035),
)


def rusage_buffer(**fields):
    return struct.pack("=16s35Q", b"u" * 16, *Rusage(**fields))


RUSAGE = rusage_buffer(resident_size=700 * MB, phys_footprint=5 * 2**32 + 3, lifetime_max_phys_footprint=6 * 2**32 + 1)


def test_rusage_fields_are_found_by_name():
    assert len(RUSAGE) == 296
    assert parse_rusage_v4(RUSAGE) == Footprint(5 * 2**32 + 3, 6 * 2**32 + 1, 700 * MB)


@pytest.mark.parametrize("buffer", [b"", RUSAGE[:-8], RUSAGE + bytes(8)])
def test_a_buffer_of_another_length_is_no_rusage(buffer):
    with pytest.raises(ValueError, match="296"):
        parse_rusage_v4(buffer)


def test_rusage_reader_passes_pid_flavor_and_buffer():
    def proc_pid_rusage(pid, flavor, buffer):
        assert (pid, flavor) == (77, 4)
        ctypes.memmove(buffer, RUSAGE, len(RUSAGE))
        return 0

    reader = RusageReader(SimpleNamespace(proc_pid_rusage=proc_pid_rusage))
    assert reader.read(77) == parse_rusage_v4(RUSAGE)


@pytest.mark.parametrize(("code", "error"), [(errno.ESRCH, ProcessLookupError), (errno.EPERM, PermissionError)])
def test_rusage_reader_raises_what_errno_says(code, error):
    def proc_pid_rusage(pid, flavor, buffer):
        ctypes.set_errno(code)
        return -1

    with pytest.raises(error):
        RusageReader(SimpleNamespace(proc_pid_rusage=proc_pid_rusage)).read(77)


# --- Linux ---

STATUS = """Name:\tpython\\nRssAnon: 1 kB
State:\tS (sleeping)
VmPeak:\t  900000 kB
VmRSS:\t   51000 kB
RssAnon:\t   20000 kB
RssFile:\t   30000 kB
RssShmem:\t    1000 kB
VmSwap:\t     500 kB
Threads:\t1
"""


def test_proc_status_counts_private_shared_and_swapped_memory_but_not_files():
    assert parse_proc_status(STATUS) == Footprint((20000 + 1000 + 500) * 1024, None, 51000 * 1024)


def test_proc_status_of_an_ended_process():
    with pytest.raises(ProcessLookupError):
        parse_proc_status("Name:\tpython\nState:\tZ (zombie)\nThreads:\t1\n")


def test_proc_status_of_a_kernel_that_does_not_tell():
    with pytest.raises(ValueError, match="RssAnon"):
        parse_proc_status("Name:\tpython\nVmRSS:\t 51000 kB\nThreads:\t1\n")


@pytest.mark.parametrize("error", [ValueError("no RssAnon"), FileNotFoundError("no /proc")])
def test_psutil_is_the_fallback_on_linux(monkeypatch, error):
    def read(self, pid):
        raise error

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ProcStatusReader, "read", read)
    memory._reader.cache_clear()
    try:
        assert meter_name() == PsutilReader.name
        assert read_footprint(os.getpid()).current > MB
    finally:
        memory._reader.cache_clear()


def test_psutil_without_the_right_to_see_private_memory_gives_resident_memory(monkeypatch):
    def refuse(self):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    reading = PsutilReader().read(os.getpid())
    assert reading.current == reading.resident > MB


# --- real processes ---


READERS = [read_footprint, PsutilReader().read]


@pytest.mark.parametrize("read", READERS, ids=["this system's", "psutil"])
def test_growth_and_shrinking_of_a_child_are_seen_to_2_mb(child, read):
    before = read(child.pid).current
    child.do("a = touch(24 * 2**20)")
    assert abs(read(child.pid).current - before - 24 * MB) < 2 * MB
    child.do("b = touch(40 * 2**20)")
    assert abs(read(child.pid).current - before - 64 * MB) < 2 * MB
    child.do("del a, b")
    assert abs(read(child.pid).current - before) < 2 * MB


@pytest.mark.parametrize("read", READERS, ids=["this system's", "psutil"])
def test_a_process_that_is_gone(child, read):
    child.end()
    with pytest.raises(ProcessLookupError):
        read(child.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="a zombie keeps its last figures elsewhere")
def test_a_process_that_ended_and_was_not_waited_for(child):
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(ProcessLookupError):
        read_footprint(child.pid)


def test_resident_memory_includes_the_footprint_of_a_small_process(child):
    child.do("a = touch(24 * 2**20)")
    reading = read_footprint(child.pid)
    assert reading.resident > 24 * MB
    assert reading.lifetime_peak is None or reading.lifetime_peak >= reading.current


def write_32_mb(folder: Path) -> Path:
    path = folder / "mapped"
    path.write_bytes(os.urandom(MB) * 32)
    return path


def is_tmpfs(folder: Path) -> bool:
    mounts = {p.mountpoint: p.fstype for p in psutil.disk_partitions(all=True)}
    return next(mounts[str(p)] for p in [folder, *folder.parents] if str(p) in mounts) == "tmpfs"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' meter")
def test_a_mapped_file_does_not_count(child, tmp_path):
    if is_tmpfs(tmp_path.resolve()):
        pytest.skip("the temporary folder is in memory, where files do count")
    path = write_32_mb(tmp_path)
    before = read_footprint(child.pid)
    child.do(f"m = map_file({str(path)!r})")
    after = read_footprint(child.pid)
    assert abs(after.current - before.current) < 2 * MB
    assert after.resident - before.resident > 30 * MB  # it was mapped and read


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_a_mapped_file_in_memory_does_count(child):
    path = write_32_mb(Path("/dev/shm"))
    try:
        before = read_footprint(child.pid).current
        child.do(f"m = map_file({str(path)!r})")
        assert abs(read_footprint(child.pid).current - before - 32 * MB) < 2 * MB
    finally:
        path.unlink()


def test_machine_memory_is_in_bytes():
    total, available = machine_memory()
    assert 256 * MB < available <= total < 2**50


def test_meter_name_says_what_is_measured():
    assert {"linux": "/proc", "darwin": "phys_footprint"}.get(sys.platform, "psutil") in meter_name()


# --- Meter ---


def test_meter_keeps_the_peak_of_a_child_after_it_was_freed(child):
    with Meter(child.pid) as meter:
        before = meter.current
        assert before > MB
        for _ in range(8):
            child.do("held = globals().setdefault('held', []); held.append(touch(8 * 2**20))")
            time.sleep(0.03)
        wait_until(lambda: abs(meter.current - before - 64 * MB) < 2 * MB)
        child.do("held.clear()")
        wait_until(lambda: abs(meter.current - before) < 2 * MB)
        assert abs(meter.peak - before - 64 * MB) < 2 * MB


def test_meter_gives_one_peak_per_interval(child):
    with Meter(child.pid) as meter:
        before = meter.mark()
        child.do("a = touch(32 * 2**20)")
        wait_until(lambda: abs(meter.current - before - 32 * MB) < 2 * MB)
        child.do("del a")
        assert abs(meter.mark() - before - 32 * MB) < 2 * MB
        assert abs(meter.mark() - before) < 2 * MB
        assert abs(meter.peak - before - 32 * MB) < 2 * MB


def test_meter_ends_with_the_process(child):
    meter = Meter(child.pid)
    meter.start()
    thread = sampling_thread(child.pid)
    assert thread.daemon
    wait_until(lambda: meter.current > 0)
    child.end()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert meter.mark() > MB
    assert meter.peak >= meter.current > MB
    meter.stop()
    meter.stop()
