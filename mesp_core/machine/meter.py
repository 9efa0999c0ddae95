"""The footprint meter: samples another process while it runs, and gives the peak of each step."""

import threading
import time
from collections.abc import Callable
from typing import Self

from mesp_core.machine.footprint import Footprint, begin_interval, read_footprint


class Meter:
    """Samples another process from a daemon thread, by default at 50 Hz.

    `current` and `peak` are bytes; they keep their last values when the process has ended, and are 0 if it never
    could be read. Where the system keeps an exact lifetime peak, it is part of `peak`, and its rise between two
    samples is credited to the interval in which it was seen. Where the system keeps an exact peak of an interval too,
    `mark` gives that one; `exact` says whether the last `mark` could. A process wants one meter: it has one interval.

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
        self.exact = False
        self._on_sample = on_sample
        self._interval_s = interval_s
        self._report_every_s = report_every_s
        self._lifetime_peak: int | None = None
        self._peak_since_mark = 0
        self._in_interval = False  # of the system's, since the last mark
        self._peak_since_report = 0
        self._gone = False
        self._lock = threading.Lock()  # held while reading and recording, so that samples are recorded in order
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"footprint of {pid}", daemon=True)

    def start(self) -> None:
        """Take the first sample, then go on in the background. Raises RuntimeError when called twice."""
        self._started = time.monotonic()
        with self._lock:
            self._in_interval = begin_interval(self.pid)
        self._sample()
        self._thread.start()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `start()`, on the clock that `on_sample` is told."""
        return time.monotonic() - self._started

    def mark(self) -> int:
        """The peak since the last mark (or the start) in bytes; a new interval begins with the footprint of now."""
        with self._lock:
            reading = self._read()
            exact = reading.exact_interval_peak if reading is not None and self._in_interval else None
            # The system's interval counts from the first change: what was held before that is in the samples.
            peak = max(self._peak_since_mark, exact or 0)
            self.exact = exact is not None
            self._peak_since_mark = self.current
            self._in_interval = reading is not None and begin_interval(self.pid)
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
            self._read()

    def _read(self) -> Footprint | None:
        """Read and record; None once the process is gone. The caller holds the lock."""
        if self._gone:  # its pid may belong to another process by now
            return None
        try:
            reading = read_footprint(self.pid)
        except ProcessLookupError:
            self._gone = True
            return None
        highest = reading.current
        if reading.lifetime_peak is not None:
            if self._lifetime_peak is not None and reading.lifetime_peak > self._lifetime_peak:
                highest = max(highest, reading.lifetime_peak)
            self._lifetime_peak = reading.lifetime_peak
        self.current = reading.current
        self.peak = max(self.peak, highest, reading.lifetime_peak or 0)
        self._peak_since_mark = max(self._peak_since_mark, highest)
        self._peak_since_report = max(self._peak_since_report, highest)
        return reading

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
