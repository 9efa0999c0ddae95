"""One live plot, driven with mouse and keyboard."""

import pytest
from plot_driver import METHODS, SIX, add, distance, drag, hover, middle, place_of, ranges, wheel
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication, QLabel

from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity
from app.widgets.theme import method_color, set_appearance


def test_all_points_are_in_view_while_it_follows(plot):
    (left, right), (low, high) = ranges(plot)
    assert left <= 1 and right >= 10 and low <= 1 and high >= 10
    add(plot, 11, 200, 50.0)
    (left, right), (low, high) = ranges(plot)
    assert left <= 1 and right >= 200 and high >= 50


def test_updates_leave_a_zoomed_view_alone_until_follow_is_clicked(qtbot, plot):
    whole = ranges(plot)
    wheel(plot)
    zoomed = ranges(plot)
    assert zoomed != whole
    assert not plot.following and not plot.follow.isChecked()
    add(plot, 11, 300, 99.0)
    assert ranges(plot) == zoomed
    qtbot.mouseClick(plot.follow, Qt.MouseButton.LeftButton)
    assert plot.following
    assert ranges(plot)[0][1] >= 300 and ranges(plot)[1][1] >= 99
    add(plot, 301, 400)
    assert ranges(plot)[0][1] >= 400


def test_updates_leave_a_dragged_view_alone(qtbot, plot):
    before = ranges(plot)
    drag(qtbot, plot, QPoint(60, 0))
    dragged = ranges(plot)
    assert dragged[0][0] < before[0][0] - 0.5
    assert dragged[0][1] - dragged[0][0] == pytest.approx(before[0][1] - before[0][0])
    add(plot, 11, 50)
    assert ranges(plot) == dragged


def test_follow_is_reached_and_pressed_with_the_keyboard(qtbot, plot):
    wheel(plot)
    plot.activateWindow()
    plot.setFocus()
    qtbot.keyClick(plot, Qt.Key.Key_Tab)
    assert QApplication.focusWidget() is plot.follow
    qtbot.keyClick(plot.follow, Qt.Key.Key_Space)
    assert plot.following
    assert "view" in plot.follow.toolTip()


def test_a_new_run_follows_again_and_forgets_the_old(plot):
    wheel(plot)
    plot.begin(["autodiff"])
    assert plot.following
    assert plot.legend.values() == {"autodiff": "–"}
    plot.add("autodiff", 1, 3.0)
    plot.draw()
    assert ranges(plot)[1][0] < 3.0 < ranges(plot)[1][1]


def test_a_single_point_is_seen(plot):
    plot.begin(["mesp"])
    before = plot.canvas.grab().toImage()
    plot.add("mesp", 1, 2.0)
    plot.draw()
    image = plot.canvas.grab().toImage()
    spot = place_of(plot, 1)
    near = [spot + QPoint(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
    assert method_color("mesp") in [image.pixelColor(pixel) for pixel in near]
    assert method_color("mesp") not in [before.pixelColor(pixel) for pixel in near]


@pytest.mark.parametrize("count", [2, 4, 6])
@pytest.mark.parametrize("points", [100, 1000])  # smoothed and not
@pytest.mark.parametrize("appearance", ["light", "dark"])
def test_curves_that_coincide_are_all_seen(qtbot, appearance, points, count):
    set_appearance(appearance)
    plot = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss"), nested=True)
    qtbot.addWidget(plot)
    plot.resize(500, 300)
    plot.show()
    methods = SIX[:count]
    plot.begin(methods)
    for step in range(1, points + 1):
        for method in methods:
            plot.add(method, step, 1.0 + step / points)
    plot.draw()
    image, at = plot.canvas.grab().toImage(), place_of(plot, points / 2)
    near = [image.pixelColor(at.x() + x, at.y() + y) for x in range(-8, 9) for y in range(-12, 13)]
    inks = {method: method_color(method, methods) for method in methods}
    ground = plot.palette().color(QPalette.ColorRole.Base)
    for method, ink in inks.items():
        own = [pixel for pixel in near if distance(pixel, ink) < 60]
        others = [other for name, other in inks.items() if name != method] + [ground]
        assert any(distance(pixel, ink) < min(distance(pixel, other) for other in others) for pixel in own), method


def test_a_line_that_nothing_hides_is_as_thin_as_in_the_other_plots(qtbot):
    thickness = []
    for nested in (True, False):
        plot = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss"), nested=nested)
        qtbot.addWidget(plot)
        plot.show()
        plot.begin(["mesp"])
        for step in range(1, 1001):
            plot.add("mesp", step, 1.013)  # beside the lines of the grid
        plot.draw()
        image, at = plot.canvas.grab().toImage(), place_of(plot, 500)
        column = [image.pixelColor(at.x(), y) for y in range(image.height())]
        thickness.append(column.count(method_color("mesp")))
    assert thickness[0] == thickness[1] in (1, 2)


def test_of_100_000_points_only_what_the_width_can_show_is_drawn(plot):
    plot.begin(METHODS)
    add(plot, 1, 100_000)
    width = plot.canvas.width()
    assert all(0 < curve.shown() <= 2 * width + 4 for curve in plot.curves.values())
    wheel(plot, 12)
    assert all(0 < curve.shown() <= 2 * width + 4 for curve in plot.curves.values())


def test_the_value_under_the_mouse_is_read_out_and_goes_with_the_mouse(qtbot, plot):
    hover(qtbot, plot, place_of(plot, 4.2))
    assert plot.readout.isVisible()
    assert plot.readout.text() == "step 4\nmebp: 2.5000\nmesp: 2.5000"
    assert plot.rect().contains(plot.readout.geometry())
    hover(qtbot, plot, place_of(plot, 10))
    assert plot.readout.text().startswith("step 10\n")
    assert plot.rect().contains(plot.readout.geometry())
    QApplication.sendEvent(plot.canvas, QEvent(QEvent.Type.Leave))
    assert not plot.readout.isVisible()


def test_a_resting_mouse_reads_what_comes_to_lie_under_it(qtbot, plot):
    hover(qtbot, plot, place_of(plot, 10))
    add(plot, 11, 100)
    assert not plot.readout.text().startswith("step 10\n")


def test_a_method_is_not_read_out_where_it_has_no_points(qtbot, plot):
    for step in range(11, 101):
        plot.add("mesp", step, 1.0)
    plot.draw()
    hover(qtbot, plot, place_of(plot, 60))
    assert plot.readout.text() == "step 60\nmesp: 1.0000"


def test_right_click_opens_no_menu(qtbot, plot):
    qtbot.mouseClick(plot.canvas.viewport(), Qt.MouseButton.RightButton, pos=middle(plot))
    assert QApplication.activePopupWidget() is None


def test_the_hint_is_there_until_there_is_something(plot):
    assert not plot.hint.isVisible()
    plot.begin(METHODS)
    assert plot.hint.isVisible() and plot.hint.text() == "Press Run"
    assert plot.canvas.rect().contains(plot.hint.geometry())


def test_names_are_plain_text(qtbot, plot):
    plot.begin(["<b>x</b>"])
    plot.add("<b>x</b>", 1, 1.0)
    plot.draw()
    hover(qtbot, plot, place_of(plot, 1))
    assert "<b>x</b>" in plot.readout.text()
    assert all(label.textFormat() == Qt.TextFormat.PlainText for label in plot.findChildren(QLabel))


@pytest.fixture
def palette_back(qapp):
    """The palette as it was, after the test."""
    yield
    set_appearance("system")
    qapp.setPalette(QPalette())


def test_light_and_dark_recolour_everything_at_once(plot, palette_back):
    seen = []
    for appearance in ("light", "dark"):
        set_appearance(appearance)
        QApplication.processEvents()
        base = plot.palette().color(QPalette.ColorRole.Base)
        image = plot.canvas.grab().toImage()
        colors = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(0, image.height(), 2)}
        assert image.pixelColor(2, 2) == base
        assert method_color("mesp").name() in colors
        left = plot.canvas.getPlotItem().getAxis("left")
        assert abs(left.textPen().color().lightness() - base.lightness()) > 100
        swatch = plot.legend.grab().toImage()
        assert any(swatch.pixelColor(x, swatch.height() // 2) == method_color("mebp") for x in range(30))
        seen.append((base.name(), method_color("mesp").name(), QColor(left.textPen().color()).name()))
    assert all(light != dark for light, dark in zip(*seen, strict=True))
