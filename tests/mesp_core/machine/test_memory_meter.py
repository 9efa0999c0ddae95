"""The meter on readings and a clock that the test sets; test_memory.py has it on real processes."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from mesp_core.machine import memory
from mesp_core.machine.memory import Footprint, Meter


class FakeReadings:
    """Stands in for `read_footprint`: the test sets what is read next."""

    def __init__(self, monkeypatch):
        self.current, self.lifetime_peak, self.gone, self.times = 0, None, False, []
        monkeypatch.setattr(memory, "read_footprint", self)

    def __call__(self, pid):
        self.times.append(time.monotonic())
        if self.gone:
            raise ProcessLookupError
        return Footprint(self.current, self.lifetime_peak, self.current)


@pytest.fixture
def readings(monkeypatch):
    return FakeReadings(monkeypatch)


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


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


class SlowWakes:
    """A clock for the meter on which every wait takes 7 ms longer than asked for, and nothing else takes time."""

    def __init__(self, monkeypatch, until_s):
        self.now = 100.0
        clock = self

        class LateEvent(threading.Event):
            def wait(self, timeout):
                clock.now += timeout + 0.007
                return self.is_set() or clock.now >= 100.0 + until_s

        monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: self.now))
        names = {name: getattr(threading, name) for name in ("Lock", "Thread", "current_thread")}
        monkeypatch.setattr(memory, "threading", SimpleNamespace(**names, Event=LateEvent))


def test_sampling_is_at_50_hz_and_late_wakes_do_not_add_up(monkeypatch):
    clock = SlowWakes(monkeypatch, until_s=10)
    times = []

    def read(pid):
        times.append(clock.now - 100)
        return Footprint(0, None, 0)

    monkeypatch.setattr(memory, "read_footprint", read)
    meter = Meter(1)
    meter.start()
    wait_until(lambda: not sampling_thread(1))
    assert times[0] == 0
    assert times[1:] == pytest.approx([0.02 * k + 0.007 for k in range(1, 500)])


def test_samples_missed_by_a_slow_callback_are_skipped(monkeypatch):
    clock = SlowWakes(monkeypatch, until_s=1)
    times = []

    def read(pid):
        times.append(clock.now - 100)
        return Footprint(0, None, 0)

    def on_sample(t_s, held):
        clock.now += 0.19

    monkeypatch.setattr(memory, "read_footprint", read)
    meter = Meter(1, on_sample, report_every_s=0)
    meter.start()
    wait_until(lambda: not sampling_thread(1))
    assert all(later - earlier > 0.19 for earlier, later in itertools.pairwise(times))


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
