"""Growing curves: what is kept, what is drawn of it, what is read at a place."""

import math

import numpy as np
import pytest

from app.plots.quantity import Quantity
from app.plots.series import Bounds, Series


def series(values, start=0.0):
    made = Series()
    for index, value in enumerate(values):
        made.add(start + index, value)
    return made


def test_it_keeps_every_point_however_many_come():
    many = series(range(5000))
    assert len(many) == 5000
    assert many.x.tolist() == many.y.tolist() == list(map(float, range(5000)))
    assert many.last == 4999


def test_an_empty_one_has_nothing_to_show():
    empty = Series()
    assert empty.last is empty.bounds is empty.nearest(3.0) is None
    assert [len(part) for part in (*empty.outline(0, 1, 10), *empty.peaks(0, 1, 10))] == [0, 0, 0, 0]


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_gap_and_no_bound(lost):
    diverged = series([2.0, 1.0, lost, lost])
    assert diverged.bounds == Bounds(0.0, 3.0, 1.0, 2.0)
    assert math.isnan(diverged.last)
    assert np.isnan(diverged.outline(0, 3, 100)[1]).tolist() == [False, False, True, True]


def test_without_any_number_there_are_no_bounds():
    assert series([math.nan] * 3).bounds is None


def test_few_points_are_drawn_as_they_are():
    x, y = series([3, 1, 2]).outline(-10, 10, 100)
    assert (x.tolist(), y.tolist()) == ([0, 1, 2], [3, 1, 2])


def test_of_many_points_every_extreme_is_drawn():
    values = np.random.default_rng(0).random(100_003)
    values[70_001], values[100_002] = 9.0, -9.0  # the last lies in a bucket that is not full
    x, y = series(values).outline(0, 100_003, 400)
    assert len(x) == len(y) <= 2 * 400 + 4
    assert (y.max(), y.min()) == (9.0, -9.0)
    assert (np.diff(x) >= 0).all()
    assert abs(x[y.argmax()] - 70_001) < 512


def test_a_lost_value_does_not_take_its_bucket_away():
    values = np.ones(10_000)
    values[::3] = math.nan
    assert np.isfinite(series(values).outline(0, 10_000, 100)[1]).all()
    values[:5_000] = math.nan
    y = series(values).outline(0, 10_000, 100)[1]
    assert np.isnan(y[0]) and np.isfinite(y[-1])


def test_only_what_is_in_view_is_drawn_with_a_neighbour_on_either_side():
    x, _ = series(range(1000)).outline(100.5, 110.5, 100)
    assert x.tolist() == list(range(100, 112))


def test_a_moved_view_draws_the_same_points_where_it_overlaps():
    noise = series(np.random.default_rng(1).random(50_000))
    before, after = noise.outline(1_000, 41_000, 300), noise.outline(1_077, 41_077, 300)
    one, other = ({*zip(x.tolist(), y.tolist(), strict=True)} for x, y in (before, after))
    assert {point for point in one if 1_300 < point[0] < 40_800} <= other


def test_marks_are_the_highest_of_their_bucket_where_they_happened():
    values = np.zeros(1_000)
    values[[123, 999]] = 5.0, 7.0
    x, y = series(values).peaks(0, 1_000, 20)
    assert len(x) <= 22
    assert {(123.0, 5.0), (999.0, 7.0)} <= {*zip(x.tolist(), y.tolist(), strict=True)}


@pytest.mark.parametrize(("x", "nearest"), [(-5, 0), (0.4, 0), (0.6, 1), (2, 2), (99, 3)])
def test_the_nearest_point(x, nearest):
    assert series([10, 11, 12, 13]).nearest(x) == (nearest, 10 + nearest)


def test_a_lost_mark_does_not_take_the_others_of_its_bucket_away():
    values = np.ones(1_000)
    values[::7] = math.nan
    assert (series(values).peaks(0, 1_000, 20)[1] == 1.0).all()


def test_a_point_without_a_place_is_left_out():
    made = series([1.0, 2.0])
    for x in (math.nan, math.inf):
        made.add(x, 3.0)
    assert (made.x.tolist(), made.bounds) == ([0.0, 1.0], Bounds(0.0, 1.0, 1.0, 2.0))


def test_a_quantity_writes_its_values():
    memory = Quantity("memory", "MB", 1)
    assert memory.labels == ("memory (MB)", "MB")
    assert [memory.text(value) for value in (1.26, 1306.6, None, math.nan)] == ["1.3 MB", "1307 MB", "–", "not finite"]
    loss = Quantity("loss", "nats per token", 4, short_unit="nats/token")
    assert loss.labels == ("loss (nats per token)", "nats per token", "nats/token")
    assert [loss.text(value) for value in (2.0, 1e12, -1.7e308)] == ["2.0000", "1e12", "-1.7e308"]
    assert Quantity("step").labels == ("step",)
    assert Quantity("step", whole=True).text(123_456_789) == "123456789"
