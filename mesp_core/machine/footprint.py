"""What the operating system says a process holds, read from outside by its pid.

The figure is private memory. Clean pages of a mapped file, a memory-mapped checkpoint for example, do not count.
"""

import functools
import mmap
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mesp_core.machine.rusage import LibSystem

_TRIAL_BYTES = 4 * 1024 * 1024  # taken by this process to see whether an interval's peak follows


@dataclass(frozen=True)
class Footprint:
    """One reading of a process, in bytes. The peaks are None where the system keeps no exact ones.

    `interval_peak` is the largest footprint since the last `begin_interval` of that process, by whomever; 0 as long as the
    footprint has not changed since.
    """

    current: int
    lifetime_peak: int | None
    resident: int
    interval_peak: int | None = None

    @property
    def exact_interval_peak(self) -> int | None:
        """`interval_peak` where it can be what it says: not below what is held now, nor above all there ever was."""
        peak, most = self.interval_peak, self.lifetime_peak
        return peak if peak and most is not None and self.current <= peak <= most else None


class _Reader(Protocol):
    name: str  # what is measured, in words

    def read(self, pid: int) -> Footprint:
        """Raise ProcessLookupError when the process is gone."""

    def begin_interval(self, pid: int) -> bool:
        """Begin an interval of which `read` gives the exact peak; False where that cannot be had."""


class RusageReader:
    """macOS."""

    name = "phys_footprint from proc_pid_rusage"

    def __init__(self, system: LibSystem | None = None) -> None:
        self._system = system or LibSystem()

    def read(self, pid: int) -> Footprint:
        usage = self._system.rusage(pid)
        if usage["proc_exit_abstime"]:  # a zombie, whose footprint reads 0
            raise ProcessLookupError(f"process {pid} has ended")
        return Footprint(
            current=usage["phys_footprint"],
            lifetime_peak=usage["lifetime_max_phys_footprint"],
            resident=usage["resident_size"],
            interval_peak=usage["interval_max_phys_footprint"],
        )

    def begin_interval(self, pid: int) -> bool:
        return self._system.reset_footprint_interval(pid)


def parse_proc_status(text: str) -> Footprint:
    """The footprint in the text of /proc/PID/status: RssAnon + RssShmem + VmSwap.

    Raises ProcessLookupError for a process that has ended but was not waited for (it has no memory any more), and
    ValueError where the kernel does not tell anonymous from file-backed memory (no RssAnon).
    """
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "VmRSS" not in kib:
        raise ProcessLookupError("the process has ended")
    if "RssAnon" not in kib:
        raise ValueError("this kernel's /proc/PID/status has no RssAnon")
    held = kib["RssAnon"] + kib.get("RssShmem", 0) + kib.get("VmSwap", 0)
    return Footprint(held * 1024, None, kib["VmRSS"] * 1024)


class ProcStatusReader:
    """Linux."""

    name = "private memory (RssAnon + RssShmem + VmSwap) from /proc/PID/status"

    def read(self, pid: int) -> Footprint:
        try:
            # A process may choose a name that is not UTF-8.
            text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise ProcessLookupError(f"there is no process {pid}") from None
        return parse_proc_status(text)

    def begin_interval(self, pid: int) -> bool:
        return False


class PsutilReader:
    """Other systems: the unique set size, or the resident size where the system does not tell the former."""

    name = "unique set size, else resident size, from psutil"

    def read(self, pid: int) -> Footprint:
        import psutil  # not at the top: the worker reads its own footprint and need not carry psutil where it can

        try:
            process = psutil.Process(pid)
            resident = process.memory_info().rss
            try:
                held = process.memory_full_info().uss
            except (psutil.AccessDenied, AttributeError):
                held = resident
        except psutil.NoSuchProcess:
            raise ProcessLookupError(f"there is no process {pid}") from None
        return Footprint(held, None, resident)

    def begin_interval(self, pid: int) -> bool:
        return False


@functools.cache
def _reader() -> _Reader:
    if sys.platform == "darwin":
        return RusageReader()
    if sys.platform == "linux":
        try:
            reader = ProcStatusReader()
            reader.read(os.getpid())
            return reader
        except (OSError, ValueError):
            pass  # no /proc, or a kernel without RssAnon
    return PsutilReader()


def read_footprint(pid: int) -> Footprint:
    """The footprint of a process now. Raises ProcessLookupError when it is gone."""
    return _reader().read(pid)


def begin_interval(pid: int) -> bool:
    """Begin a new interval of a process, of which `read_footprint` then gives the peak; False where none can be had.

    A process has one interval at a time, whoever begins it.
    """
    return _reader().begin_interval(pid)


def meter_name() -> str:
    """What is measured on this machine, in words, and whether peaks are exact or sampled. Tried on this process."""
    reader = _reader()
    exact_run = reader.read(os.getpid()).lifetime_peak is not None
    if exact_run and _intervals_are_exact(reader):
        return f"{reader.name}; peaks of a step and of a run are exact"
    of_run = "the peak of a run is exact, those of steps are sampled" if exact_run else "peaks are sampled"
    return f"{reader.name}; {of_run}"


def _intervals_are_exact(reader: _Reader) -> bool:
    """Whether an interval's peak rises with what this process then takes."""
    if not reader.begin_interval(os.getpid()):
        return False
    before = reader.read(os.getpid()).current
    with mmap.mmap(-1, _TRIAL_BYTES) as fresh:
        for start in range(0, _TRIAL_BYTES, mmap.PAGESIZE):
            fresh[start] = 1
        peak = reader.read(os.getpid()).exact_interval_peak
    return peak is not None and peak >= before + _TRIAL_BYTES // 2  # other threads may have freed some meanwhile
