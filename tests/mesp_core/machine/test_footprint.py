import os
import sys
from pathlib import Path

import psutil
import pytest
from watched_child import wait_until

from mesp_core.machine import footprint
from mesp_core.machine.footprint import (
    Footprint,
    ProcStatusReader,
    PsutilReader,
    RusageReader,
    meter_name,
    parse_proc_status,
    read_footprint,
)
from mesp_core.machine.memory import MB
from mesp_core.machine.rusage import FIELDS

# --- macOS ---


class FakeSystem:
    """Stands in for libSystem: one process whose footprint the test changes, with XNU's bookkeeping of its peaks."""

    def __init__(self, intervals=True):
        self.current, self.lifetime, self.interval, self.exited, self.intervals = 0, 0, 0, 0, intervals

    def set(self, current):
        """Any change, up or down, is compared with both peaks."""
        self.current = current
        self.lifetime, self.interval = max(self.lifetime, current), max(self.interval, current)

    def rusage(self, pid):
        return dict.fromkeys(FIELDS, 7) | {
            "phys_footprint": self.current,
            "lifetime_max_phys_footprint": self.lifetime,
            "interval_max_phys_footprint": self.interval,
            "resident_size": 700 * MB,
            "proc_exit_abstime": self.exited,
        }

    def reset_footprint_interval(self, pid):
        if self.intervals:
            self.interval = 0
        return self.intervals


def test_the_macos_reader_gives_footprint_and_peaks():
    system = FakeSystem()
    reader = RusageReader(system)
    system.set(9 * 2**32 + 1)
    assert reader.begin_interval(77)
    system.set(6 * 2**32 + 2)
    system.set(5 * 2**32 + 3)
    reading = reader.read(77)
    assert reading == Footprint(5 * 2**32 + 3, 9 * 2**32 + 1, 700 * MB, 6 * 2**32 + 2)
    assert reading.exact_interval_peak == 6 * 2**32 + 2


def test_a_process_that_has_an_exit_time_is_gone():
    system = FakeSystem()
    system.exited = 123
    with pytest.raises(ProcessLookupError):
        RusageReader(system).read(77)


@pytest.mark.parametrize(
    "peaks",
    [
        {"interval_peak": None},
        {"interval_peak": 0},  # nothing changed, or the system keeps none
        {"interval_peak": 49},  # less than is held now
        {"interval_peak": 81},  # more than was ever held
        {"interval_peak": 60, "lifetime_peak": None},
    ],
)
def test_interval_peaks_that_cannot_be_are_not_exact(peaks):
    values = {"current": 50, "lifetime_peak": 80, "resident": 0} | peaks
    assert Footprint(**values).exact_interval_peak is None


@pytest.mark.parametrize("peak", [50, 80])
def test_interval_peaks_that_can_be_are_exact(peak):
    assert Footprint(50, 80, 0, peak).exact_interval_peak == peak


class OwnMemory(FakeSystem):
    """A system that counts what this process maps, as the trial of `meter_name` needs."""

    def rusage(self, pid):
        self.set(PsutilReader().read(pid).current)
        return super().rusage(pid)


class NeverFollows(OwnMemory):
    """Says that it has begun an interval, and has none."""

    def reset_footprint_interval(self, pid):
        return True

    def rusage(self, pid):
        return super().rusage(pid) | {"interval_max_phys_footprint": 0}


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (OwnMemory(), "peaks of a step and of a run are exact"),
        (OwnMemory(intervals=False), "the peak of a run is exact, those of steps are sampled"),
        (NeverFollows(), "the peak of a run is exact, those of steps are sampled"),
    ],
)
def test_the_meter_says_on_macos_which_peaks_are_exact(monkeypatch, system, words):
    monkeypatch.setattr(footprint, "_reader", lambda: RusageReader(system))
    assert meter_name() == f"phys_footprint from proc_pid_rusage; {words}"


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
    footprint._reader.cache_clear()
    try:
        assert meter_name().startswith(PsutilReader.name)
        assert read_footprint(os.getpid()).current > MB
    finally:
        footprint._reader.cache_clear()


def test_psutil_without_the_right_to_see_private_memory_gives_resident_memory(monkeypatch):
    def refuse(self):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    reading = PsutilReader().read(os.getpid())
    assert reading.current == reading.resident > MB


def test_meter_name_says_what_is_measured():
    assert {"linux": "/proc", "darwin": "phys_footprint"}.get(sys.platform, "psutil") in meter_name()
    assert ("are exact" if sys.platform == "darwin" else "peaks are sampled") in meter_name()


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
