"""Many requests, few calls, and the last one is never lost."""

import time

from app.widgets.throttle import Throttle


def test_a_burst_is_one_call_now_and_one_later(qtbot):
    calls = []
    throttle = Throttle(lambda: calls.append(1), every_ms=40)
    for _ in range(1000):
        throttle.request()
    qtbot.waitUntil(lambda: len(calls) == 1, timeout=1000)
    for _ in range(1000):
        throttle.request()
    assert len(calls) == 1
    qtbot.waitUntil(lambda: len(calls) == 2, timeout=1000)
    qtbot.wait(100)
    assert len(calls) == 2


def test_never_more_often_than_asked_for(qtbot):
    calls = []
    throttle = Throttle(lambda: calls.append(1), every_ms=50)
    start = time.monotonic()
    for _ in range(60):
        throttle.request()
        qtbot.wait(5)
    elapsed_ms = 1000 * (time.monotonic() - start)  # on a busy machine far more than 300
    assert 2 <= len(calls) <= 1 + elapsed_ms / (0.95 * 50)  # Qt's timers may be early by 5 %


def test_flush_calls_now_and_cancel_forgets(qtbot):
    calls = []
    throttle = Throttle(lambda: calls.append(1), every_ms=20)
    throttle.flush()
    assert len(calls) == 1
    throttle.request()
    throttle.cancel()
    qtbot.wait(60)
    assert len(calls) == 1
