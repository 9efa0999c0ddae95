"""Two plots below each other, and a second run in them."""

import math

import pytest
from plot_driver import METHODS, SIX, hover, place_of, ranges, tick_labels, wheel
from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QApplication, QLabel, QVBoxLayout, QWidget

from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity
from app.widgets.theme import method_color


@pytest.fixture
def pair(qtbot):
    """Loss, with step time below it, in a window."""
    window, step = QWidget(), Quantity("step", whole=True)
    qtbot.addWidget(window)
    column = QVBoxLayout(window)
    upper = LivePlot("Loss and step time", step, Quantity("loss", "", 1))
    lower = LivePlot("Step time", step, Quantity("step time", "s", 1, from_zero=True), above=upper)
    for made in (upper, lower):
        column.addWidget(made)
    window.resize(500, 500)
    with qtbot.waitExposed(window):
        window.show()
    upper.begin(METHODS)
    fill(upper, lower, 10)
    yield upper, lower  # while the window lives


def fill(upper, lower, count, loss=2.0):
    for step in range(1, count + 1):
        for method in METHODS:
            upper.add(method, step, loss)
            lower.add(method, step, 0.5)
    for made in (upper, lower):
        made.draw()


def test_a_plot_below_another_shares_its_legend_follow_and_x(qtbot, pair):
    upper, lower = pair
    assert upper.legend.values() == {"mebp": "2.0 · 0.5 s", "mesp": "2.0 · 0.5 s"}
    assert len(upper.window().findChildren(QLabel, "title")) == 1
    assert lower.follow is upper.follow
    assert lower.canvas.getPlotItem().getAxis("bottom").label.isVisible()
    assert not upper.canvas.getPlotItem().getAxis("bottom").label.isVisible()
    assert tick_labels(lower, "bottom") and not tick_labels(upper, "bottom")
    for moved in pair:
        wheel(moved)
        assert not upper.following
        assert ranges(upper)[0] == ranges(lower)[0] != (0.82, 10.18)
        heights = [made.canvas.getViewBox().sceneBoundingRect() for made in pair]
        assert heights[0].left() == heights[1].left() and heights[0].right() == heights[1].right()
        qtbot.mouseClick(upper.follow, Qt.MouseButton.LeftButton)
        assert ranges(upper)[0] == ranges(lower)[0] == pytest.approx((0.82, 10.18))


def test_both_have_the_same_x_even_where_one_has_lost_all_values(pair):
    upper, lower = pair
    upper.begin(METHODS)
    fill(upper, lower, 500, math.nan)
    assert ranges(upper)[0] == ranges(lower)[0] and ranges(lower)[0][1] > 500
    assert upper.legend.values()["mebp"] == "not finite · 0.5 s"


def test_the_same_methods_again_begin_with_nothing(qtbot, pair):
    upper, _ = pair
    empty = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss", "", 1))
    qtbot.addWidget(empty)
    empty.begin(METHODS)
    for made in pair:
        made.add_mark("mebp", 3.0, 0.5)
        made.raise_peak("mebp", 5.0)
        made.end("mebp")
        made.draw()
    hover(qtbot, upper, place_of(upper, 4))
    assert upper.readout.isVisible() and upper.curves["mebp"].peak_line.isVisible()
    wheel(upper)
    curves = dict(upper.curves)
    upper.begin(METHODS)
    assert upper.curves == curves  # nothing was made anew
    assert upper.following and upper.hint.isVisible() and not upper.readout.isVisible()
    assert upper.legend.values() == {"mebp": "–", "mesp": "–"}
    assert ranges(upper) == ranges(empty)
    for made in pair:
        assert ranges(made)[0] == ranges(empty)[0] and ranges(made)[1][1] == ranges(empty)[1][1]
        assert not made.curves["mebp"].peak_line.isVisible()
        image = made.canvas.grab().toImage()
        pixels = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
        assert not pixels & {method_color(method).name() for method in METHODS}
    upper.add("mebp", 1, 3.0)
    upper.raise_peak("mebp", 3.0)
    upper.draw()
    assert upper.legend.values()["mebp"] == "now 3.0 · peak 3.0 · –"  # it has not ended
    assert not upper.hint.isVisible()


def test_the_readout_of_a_small_plot_is_seen_as_a_whole(qtbot, pair):
    upper, _ = pair
    upper.begin(SIX)
    for method in SIX:
        for made in pair:
            made.add(method, 1, 1.0)
    upper.window().resize(upper.window().minimumSizeHint())
    QApplication.processEvents()
    for made in pair:
        made.draw()
        hover(qtbot, made, place_of(made, 1))
        assert made.readout.isVisible() and made.readout.text().count("\n") == len(SIX)
        assert made.readout.height() > made.canvas.height() / 2
        assert made.readout.visibleRegion().boundingRect() == made.readout.rect()  # nothing of it is cut off
        QApplication.sendEvent(made.canvas, QEvent(QEvent.Type.Leave))
        assert not made.readout.isVisible()
