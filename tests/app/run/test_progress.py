"""Words and figures of the status bar."""

import pytest

from app.run.progress import Progress


def test_before_the_first_step_no_time_is_invented():
    progress = Progress(["mebp", "mesp"], 10)
    assert progress.fraction == 0 and progress.seconds_left is None
    progress.load("mebp")
    assert progress.text == "mebp (1 of 2): step 0 of 10"


def test_time_left_is_by_each_methods_own_speed():
    progress = Progress(["mebp", "mesp"], 10)
    progress.load("mebp")
    progress.add("mebp", 1, 2.0)
    assert progress.seconds_left == pytest.approx(9 * 2 + 10 * 2)  # mesp is taken to be as fast
    for step in range(2, 11):
        progress.add("mebp", step, 2.0)
    progress.end("mebp")
    progress.load("mesp")
    progress.add("mesp", 1, 1.0)
    assert progress.seconds_left == pytest.approx(9)
    assert progress.fraction == pytest.approx(0.55)
    assert progress.text == "mesp (2 of 2): step 1 of 10  ·  1 s/step  ·  9 s left"


def test_one_slow_step_does_not_move_the_estimate():
    progress = Progress(["mesp"], 100)
    for step, seconds in enumerate([1.0, 1.0, 60.0, 1.0, 1.0], 1):
        progress.add("mesp", step, seconds)
    assert progress.seconds_left == pytest.approx(95)


def test_a_method_that_ended_early_counts_as_done():
    progress = Progress(["mebp", "mesp"], 10)
    progress.add("mebp", 2, 1.0)
    progress.end("mebp")
    assert progress.fraction == pytest.approx(0.5)
    assert progress.seconds_left == pytest.approx(10)
