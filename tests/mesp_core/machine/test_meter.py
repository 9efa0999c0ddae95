"""The meter on readings and a clock that the test sets, and at the end on real processes."""

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from watched_child import wait_until

from mesp_core.machine import meter as meter_module
from mesp_core.machine.footprint import Footprint
from mesp_core.machine.memory import MB
from mesp_core.machine.meter import Meter


class FakeReadings:
    """Stands in for `read_footprint`: the test sets what is read next."""

    def __init__(self, monkeypatch):
        self.current, self.lifetime_peak, self.gone, self.times = 0, None, False, []
        monkeypatch.setattr(meter_module, "read_footprint", self)

    def __call__(self, pid):
        self.times.append(time.monotonic())
        if self.gone:
            raise ProcessLookupError
        return Footprint(self.current, self.lifetime_peak, self.current)


@pytest.fixture
def readings(monkeypatch):
    return FakeReadings(monkeypatch)


def sampling_thread(pid):
    return next((t for t in threading.enumerate() if t.name == f"footprint of {pid}"), None)


def test_mark_samples_at_both_ends_of_an_interval(readings):
    meter = Meter(1, interval_s=60)
    readings.current = 10
    meter.start()
    readings.current = 30
    assert meter.mark() == 30
    readings.current = 20
    assert meter.mark() == 30  # it began with 30
    assert meter.mark() == 20
    assert (meter.current, meter.peak) == (20, 30)
    meter.stop()


def test_stop_takes_a_last_sample_only_once(readings):
    readings.current = 1
    meter = Meter(1, interval_s=60)
    meter.start()
    readings.current = 5
    meter.stop()
    readings.current = 9
    meter.stop()
    assert (meter.current, meter.peak) == (5, 5)


def test_the_exact_lifetime_peak_is_part_of_the_peak(readings):
    readings.current, readings.lifetime_peak = 10, 50
    with Meter(1, interval_s=60) as meter:
        assert meter.peak == 50
        assert meter.mark() == 10  # those 50 were before the meter's time
        readings.lifetime_peak = 80  # rose and fell between two samples
        assert meter.mark() == 80
        assert meter.mark() == 10
        assert meter.peak == 80


class WithIntervals:
    """A process as macOS counts it: every change of its footprint is compared with two peaks, of which one is reset."""

    def __init__(self, monkeypatch):
        self.current, self.lifetime, self.interval, self.refused, self.keeps_interval = 10, 10, 0, False, True
        monkeypatch.setattr(meter_module, "read_footprint", self.read)
        monkeypatch.setattr(meter_module, "begin_interval", self.begin)

    def changes(self, *footprints):
        for self.current in footprints:
            self.lifetime = max(self.lifetime, self.current)
            self.interval = max(self.interval, self.current)

    def read(self, pid):
        return Footprint(self.current, self.lifetime, 0, self.interval if self.keeps_interval else 0)

    def begin(self, pid):
        if not self.refused:
            self.interval = 0
        return not self.refused


@pytest.fixture
def process(monkeypatch):
    return WithIntervals(monkeypatch)


def test_an_intervals_exact_peak_is_seen_between_two_samples(process):
    process.changes(80, 10)  # what was before the meter is in its peak and in no interval
    with Meter(1, interval_s=60) as meter:
        process.changes(50, 20)
        assert (meter.mark(), meter.exact) == (50, True)
        process.changes(70, 30)
        assert (meter.mark(), meter.exact) == (70, True)
        process.changes(25)
        assert (meter.mark(), meter.exact) == (30, True)  # with which it began
        assert meter.peak == 80


def test_an_interval_in_which_nothing_changed_has_what_was_held(process):
    process.changes(40)
    with Meter(1, interval_s=60) as meter:
        assert (meter.mark(), meter.exact) == (40, False)


def test_samples_are_the_fallback_where_intervals_are_refused(process):
    process.changes(80, 10)
    process.refused = True
    with Meter(1, interval_s=60) as meter:
        process.changes(50, 20)
        assert (meter.mark(), meter.exact) == (20, False)  # the system's 80 is of no interval of ours
        process.refused = False
        process.changes(15)
        assert (meter.mark(), meter.exact) == (20, False)  # refused when it began
        process.changes(60, 5)
        assert (meter.mark(), meter.exact) == (60, True)


def test_samples_are_the_fallback_where_an_intervals_peak_is_impossible(process):
    process.keeps_interval = False
    with Meter(1, interval_s=60) as meter:
        process.changes(50, 20)
        assert (meter.mark(), meter.exact) == (50, False)  # the rise of the lifetime's peak
        process.changes(45, 30)
        assert (meter.mark(), meter.exact) == (30, False)


def test_the_last_interval_of_a_process_that_ended_is_not_exact(process, monkeypatch):
    def gone(pid):
        raise ProcessLookupError

    with Meter(1, interval_s=60) as meter:
        process.changes(50, 20)
        assert meter.mark() == 50
        monkeypatch.setattr(meter_module, "read_footprint", gone)
        assert (meter.mark(), meter.exact) == (20, False)


class SlowWakes:
    """A clock for the meter on which every wait takes 7 ms longer than asked for, and nothing else takes time.

    `times`: when the meter read the footprint, in seconds from the start.
    """

    def __init__(self, monkeypatch, until_s):
        self.now, self.times = 100.0, []
        clock = self

        def read(pid):
            self.times.append(self.now - 100)
            return Footprint(0, None, 0)

        class LateEvent(threading.Event):
            def wait(self, timeout):
                clock.now += timeout + 0.007
                return self.is_set() or clock.now >= 100.0 + until_s

        monkeypatch.setattr(meter_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        names = {name: getattr(threading, name) for name in ("Lock", "Thread", "current_thread")}
        monkeypatch.setattr(meter_module, "threading", SimpleNamespace(**names, Event=LateEvent))
        monkeypatch.setattr(meter_module, "read_footprint", read)


def test_sampling_is_at_50_hz_and_late_wakes_do_not_add_up(monkeypatch):
    clock = SlowWakes(monkeypatch, until_s=10)
    meter = Meter(1)
    meter.start()
    wait_until(lambda: not sampling_thread(1))
    assert clock.times[0] == 0
    assert clock.times[1:] == pytest.approx([0.02 * k + 0.007 for k in range(1, 500)])


def test_samples_missed_by_a_slow_callback_are_skipped(monkeypatch):
    clock = SlowWakes(monkeypatch, until_s=1)

    def on_sample(t_s, held):
        clock.now += 0.19

    meter = Meter(1, on_sample, report_every_s=0)
    meter.start()
    wait_until(lambda: not sampling_thread(1))
    assert all(later - earlier > 0.19 for earlier, later in itertools.pairwise(clock.times))


def test_real_time_sampling(readings):
    with Meter(1):
        time.sleep(0.5)
        n = len(readings.times)
    assert 10 <= n <= 27  # 26 on an idle machine


def test_reports_carry_the_maximum_since_the_last_one(readings):
    reports = []
    threads = set()

    def on_sample(t_s, held):
        reports.append((t_s, held))
        threads.add(threading.current_thread())

    readings.current = 5
    with Meter(1, on_sample, interval_s=0.005, report_every_s=0.1):
        wait_until(lambda: reports)
        n = len(readings.times)
        readings.current = 90
        wait_until(lambda: len(readings.times) > n + 1)
        readings.current = 7
        wait_until(lambda: reports[-1][1] == 7)
    held = [held for _, held in reports]
    assert [h for i, h in enumerate(held) if i == 0 or held[i - 1] != h] == [5, 90, 7]
    times = [t_s for t_s, _ in reports]
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(times))
    assert threading.main_thread() not in threads


def test_stop_joins_the_thread(readings):
    before = threading.active_count()
    meter = Meter(1)
    meter.start()
    assert threading.active_count() == before + 1
    meter.stop()
    assert threading.active_count() == before


def test_stop_from_the_callback_does_not_wait_for_itself(readings):
    stopped = threading.Event()

    def on_sample(t_s, held):
        meter.stop()
        stopped.set()

    meter = Meter(1, on_sample, interval_s=0.005)
    meter.start()
    assert stopped.wait(5)
    meter.stop()


def test_a_process_that_never_was_gives_zeros_and_no_error(readings):
    readings.gone = True
    with Meter(1) as meter:
        pass
    assert (meter.current, meter.peak, meter.mark()) == (0, 0, 0)


def test_an_ended_process_is_never_read_again(readings):
    meter = Meter(1, interval_s=60)
    meter.start()
    readings.gone = True
    meter.mark()
    readings.gone, readings.current = False, 99  # its pid now belongs to another process
    n = len(readings.times)
    assert meter.mark() == 0
    meter.stop()
    assert len(readings.times) == n


@pytest.mark.parametrize("options", [{"interval_s": 0}, {"interval_s": -1}, {"report_every_s": -0.1}])
def test_impossible_intervals_are_refused(options):
    with pytest.raises(ValueError, match="interval_s"):
        Meter(1, **options)


# --- real processes ---


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


@pytest.mark.skipif(sys.platform != "darwin", reason="only macOS keeps the peak of an interval")
def test_what_was_taken_and_freed_between_two_samples_is_in_the_intervals_peak(child):
    with Meter(child.pid, interval_s=60) as meter:
        child.do("pass")
        before = meter.mark()
        child.do("a = touch(32 * 2**20); del a")
        assert abs(meter.mark() - before - 32 * MB) < 2 * MB and meter.exact
        child.do("a = touch(8 * 2**20); del a")  # less than the lifetime's peak
        assert abs(meter.mark() - before - 8 * MB) < 2 * MB and meter.exact
