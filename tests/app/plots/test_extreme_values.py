"""Whatever number a run brings, nothing raises and the rest is seen."""

import itertools
import math

import pytest
from plot_driver import METHODS, distance, hover, place_of, ranges, wheel
from PySide6.QtCore import QEvent, QPointF
from PySide6.QtWidgets import QApplication

from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity
from app.widgets.theme import method_color

EXTREMES = (2.0, -1.0, 1e12, -1e12, 1e9, 1.7e308, -1.7e308, 5e-324, math.nan, math.inf, -math.inf)


def test_a_diverged_loss_breaks_neither_curve_nor_range(plot):
    for method, value in (("mebp", math.nan), ("mesp", math.inf)):
        for step in range(11, 31):
            plot.add(method, step, value)
    plot.draw()
    (left, right), (low, high) = ranges(plot)
    assert all(map(math.isfinite, (left, right, low, high)))
    assert right >= 30 and high < 12
    assert plot.legend.values() == {"mebp": "not finite", "mesp": "not finite"}
    plot.grab()


def test_only_lost_values_draw_an_empty_plot(plot):
    plot.begin(METHODS)
    plot.add("mebp", 1, math.nan)
    plot.draw()
    plot.grab()
    assert all(map(math.isfinite, (*ranges(plot)[0], *ranges(plot)[1])))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("nested", [True, False])
def test_no_number_raises_or_hides_the_rest(qtbot, nested):
    plot = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss", "s", 4, from_zero=not nested), nested=nested)
    qtbot.addWidget(plot)
    plot.resize(400, 240)
    plot.show()
    for one, other in [*itertools.pairwise(EXTREMES), *((extreme, extreme) for extreme in EXTREMES)]:
        plot.begin(METHODS)
        for method in METHODS:
            for step in range(1, 31):
                plot.add(method, step, one if step < 5 else other if step < 10 else 1.0)
            for value in (one, other):
                plot.add_mark(method, 1.0, value)
                plot.raise_peak(method, value)
        plot.draw()
        (left, right), (low, high) = ranges(plot)
        assert left < 1 and right > 30 and low <= 1.0 <= high and math.isfinite(high - low)
        assert all(low <= value <= high for value in (one, other) if abs(value) <= 1e12)
        image = plot.canvas.grab().toImage()
        at = plot.canvas.getViewBox().mapViewToScene(QPointF(20, 1.0)).toPoint()
        near = [image.pixelColor(at.x(), at.y() + y) for y in range(-4, 5)]
        assert any(distance(pixel, method_color(method)) < 100 for pixel in near for method in METHODS), (one, other)
        assert all(len(text) < 60 for text in plot.legend.values().values())
        hover(qtbot, plot, at)
        for clicks in (40, -80):
            wheel(plot, clicks)
            plot.draw()
            plot.grab()
        QApplication.sendEvent(plot.canvas, QEvent(QEvent.Type.Leave))


def test_a_peak_is_the_highest_finite_value_and_is_in_view_by_itself(plot):
    plot.begin(["mesp"])
    plot.add("mesp", 1.0, math.nan)
    for value in (math.nan, 3.0, math.inf, 2.0):
        plot.raise_peak("mesp", value)
    plot.draw()
    line = plot.curves["mesp"].peak_line
    assert line.isVisible() and line.value() == 3.0
    assert ranges(plot)[1][0] < 3.0 < ranges(plot)[1][1]
    assert plot.legend.values() == {"mesp": "now not finite · peak 3.0000"}


def test_a_value_beyond_all_bounds_leaves_through_the_edge(plot):
    plot.begin(["mesp"])
    for step in range(1, 101):
        plot.add("mesp", step, 1.7e308 if step == 50 else 1.0)
    plot.draw()
    image, at = plot.canvas.grab().toImage(), place_of(plot, 49.01)  # on the way up
    top = plot.canvas.getViewBox().sceneBoundingRect().toRect().top() + 3
    assert any(distance(image.pixelColor(at.x() + x, top), method_color("mesp")) < 100 for x in range(-3, 4))
    assert plot.curves["mesp"].points.nearest(50)[1] == 1.7e308
