"""The footprint meter: what the operating system says a process holds, read from outside by its pid.

The figure is private memory. Clean pages of a mapped file, a memory-mapped checkpoint for example, do not count.
"""

import ctypes
import functools
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

MB = 1024 * 1024


@dataclass(frozen=True)
class Footprint:
    """One reading of a process, in bytes. `lifetime_peak` is None where the system keeps no exact one."""

    current: int
    lifetime_peak: int | None
    resident: int


class _Reader(Protocol):
    name: str  # what is measured, in words

    def read(self, pid: int) -> Footprint:
        """Raise ProcessLookupError when the process is gone."""


# --- macOS ---

_RUSAGE_INFO_V4 = 4  # the flavor
_RUSAGE_SIZE = 296  # uuid[16], then 35 uint64
_RESIDENT_AT, _FOOTPRINT_AT, _LIFETIME_MAX_AT = 64, 72, 240


def parse_rusage_v4(buffer: bytes) -> Footprint:
    """The fields of a `rusage_info_v4` that matter here. Raises ValueError unless it is 296 bytes long."""
    if len(buffer) != _RUSAGE_SIZE:
        raise ValueError(f"a rusage_info_v4 is {_RUSAGE_SIZE} bytes long, not {len(buffer)}")

    def uint64(offset: int) -> int:
        return struct.unpack_from("=Q", buffer, offset)[0]

    return Footprint(uint64(_FOOTPRINT_AT), uint64(_LIFETIME_MAX_AT), uint64(_RESIDENT_AT))


class RusageReader:
    """macOS. `library` is libSystem, or in tests something with its `proc_pid_rusage`."""

    name = "phys_footprint from proc_pid_rusage, with the exact lifetime peak"

    def __init__(self, library: object | None = None) -> None:
        self._library = library or ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)

    def read(self, pid: int) -> Footprint:
        buffer = ctypes.create_string_buffer(_RUSAGE_SIZE)
        if self._library.proc_pid_rusage(pid, _RUSAGE_INFO_V4, buffer) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), f"process {pid}")  # ESRCH makes it a ProcessLookupError
        return parse_rusage_v4(buffer.raw)


# --- Linux ---


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


# --- anything else ---


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


def meter_name() -> str:
    """What `read_footprint` measures on this machine, in words."""
    return _reader().name


def machine_memory() -> tuple[int, int]:
    """The machine's memory in bytes: (total, available without swapping)."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available


class Meter:
    """Samples another process from a daemon thread, by default at 50 Hz.

    `current` and `peak` are bytes; they keep their last values when the process has ended, and are 0 if it never
    could be read. Where the system keeps an exact lifetime peak, it is part of `peak`, and its rise between two
    samples is credited to the interval in which it was seen.

    `on_sample(t_s, bytes)` is called from the sampling thread, at most every `report_every_s`, with the seconds since
    `start()` and the highest footprint since the last call. It must not raise.
    """

    def __init__(
        self,
        pid: int,
        on_sample: Callable[[float, int], None] | None = None,
        interval_s: float = 0.02,
        report_every_s: float = 0.2,
    ) -> None:
        if interval_s <= 0 or report_every_s < 0:
            raise ValueError("interval_s must be above 0 and report_every_s must not be negative")
        self.pid = pid
        self.current = 0
        self.peak = 0
        self._on_sample = on_sample
        self._interval_s = interval_s
        self._report_every_s = report_every_s
        self._lifetime_peak: int | None = None
        self._peak_since_mark = 0
        self._peak_since_report = 0
        self._gone = False
        self._lock = threading.Lock()  # held while reading and recording, so that samples are recorded in order
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"footprint of {pid}", daemon=True)

    def start(self) -> None:
        """Take the first sample, then go on in the background. Raises RuntimeError when called twice."""
        self._started = time.monotonic()
        self._sample()
        self._thread.start()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `start()`, on the clock that `on_sample` is told."""
        return time.monotonic() - self._started

    def mark(self) -> int:
        """The peak since the last mark (or the start) in bytes; a new interval begins with the footprint of now."""
        self._sample()
        with self._lock:
            peak, self._peak_since_mark = self._peak_since_mark, self.current
        return peak

    def stop(self) -> None:
        """Take a last sample and end the thread. Calling it again, or after the process has ended, is fine."""
        if not self._stopping.is_set():
            self._sample()
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _sample(self) -> None:
        with self._lock:
            if self._gone:  # its pid may belong to another process by now
                return
            try:
                reading = read_footprint(self.pid)
            except ProcessLookupError:
                self._gone = True
                return
            highest = reading.current
            if reading.lifetime_peak is not None:
                if self._lifetime_peak is not None and reading.lifetime_peak > self._lifetime_peak:
                    highest = max(highest, reading.lifetime_peak)
                self._lifetime_peak = reading.lifetime_peak
            self.current = reading.current
            self.peak = max(self.peak, highest, reading.lifetime_peak or 0)
            self._peak_since_mark = max(self._peak_since_mark, highest)
            self._peak_since_report = max(self._peak_since_report, highest)

    def _run(self) -> None:
        tick = 0
        reported = float("-inf")
        while not self._gone:
            now = self.elapsed_s
            if self._on_sample and now - reported >= self._report_every_s:
                with self._lock:
                    highest, self._peak_since_report = self._peak_since_report, 0
                self._on_sample(now, highest)
                reported = now
                now = self.elapsed_s
            # Due times are multiples of the interval from the start, so errors do not add up; missed ones are skipped.
            tick = max(tick + 1, int(now / self._interval_s))
            if self._stopping.wait(max(0.0, tick * self._interval_s - now)):
                return
            self._sample()
