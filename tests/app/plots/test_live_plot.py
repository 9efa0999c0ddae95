"""One live plot, driven with mouse and keyboard."""

import math

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QPalette, QWheelEvent
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from app.plots.legend import Legend
from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity
from app.theme import method_color, set_appearance

METHODS = ("mebp", "mesp")


@pytest.fixture
def plot(qtbot):
    """A shown plot with ten points of each method."""
    made = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss", "nats per token", 4), "Press Run")
    qtbot.addWidget(made)
    made.resize(500, 300)
    with qtbot.waitExposed(made):
        made.show()
    made.begin(METHODS)
    add(made, 1, 10)
    return made


def add(plot, first, last, value=None):
    for step in range(first, last + 1):
        for method in METHODS:
            plot.add(method, step, 10 / step if value is None else value)
    plot.draw()


def ranges(plot):
    return [tuple(axis) for axis in plot.canvas.getViewBox().viewRange()]


def middle(plot):
    return plot.canvas.getViewBox().sceneBoundingRect().center().toPoint()


def wheel(plot, clicks=1):
    at = QPointF(middle(plot))
    event = QWheelEvent(
        at,
        plot.canvas.viewport().mapToGlobal(at),
        QPoint(),
        QPoint(0, 120 * clicks),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(plot.canvas.viewport(), event)


def drag(qtbot, plot, by):
    viewport, start = plot.canvas.viewport(), middle(plot)
    qtbot.mousePress(viewport, Qt.MouseButton.LeftButton, pos=start)
    for part in range(1, 6):
        qtbot.mouseMove(viewport, start + by * part / 5)
        qtbot.wait(15)  # pyqtgraph takes no more than 100 moves a second
    qtbot.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=start + by)


def hover(qtbot, plot, at):
    qtbot.mouseMove(plot.canvas.viewport(), at - QPoint(3, 3))
    qtbot.wait(15)
    qtbot.mouseMove(plot.canvas.viewport(), at)


def place_of(plot, x):
    view = plot.canvas.getViewBox()
    low, high = view.viewRange()[1]
    return view.mapViewToScene(QPointF(x, (low + high) / 2)).toPoint()


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


def test_curves_that_coincide_are_both_seen(qtbot):
    plot = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss"), nested=True)
    qtbot.addWidget(plot)
    plot.resize(500, 300)
    plot.show()
    plot.begin(METHODS)
    for step in range(1, 1001):
        for method in METHODS:
            plot.add(method, step, 1.0)
    plot.draw()
    image, at = plot.canvas.grab().toImage(), place_of(plot, 500.5)
    column = {image.pixelColor(at.x(), at.y() + offset).name() for offset in range(-4, 5)}
    assert {method_color(method).name() for method in METHODS} <= column


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
    assert plot.canvas.rect().contains(plot.readout.geometry())
    hover(qtbot, plot, place_of(plot, 10))
    assert plot.readout.text().startswith("step 10\n")
    assert plot.canvas.rect().contains(plot.readout.geometry())
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


def test_the_axes_say_what_and_in_which_unit_and_steps_have_no_fractions(plot):
    texts = {axis: plot.canvas.getPlotItem().getAxis(axis) for axis in ("bottom", "left")}
    assert texts["bottom"].label.toPlainText().strip() == "step"
    assert texts["left"].label.toPlainText().strip() == "loss (nats per token)"
    assert texts["bottom"].tickSpacing(1, 3, 400) == [(1.0, 0.0)]
    spacing = texts["left"].tickSpacing(0, 1, 40)[0][0]
    assert spacing * 40 >= 20  # two labels of a low axis do not lie on each other
    assert not any(axis.autoSIPrefix for axis in texts.values())


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


def test_text_follows_the_font(plot):
    bottom = plot.canvas.getPlotItem().getAxis("bottom")
    before = bottom.height()
    font = plot.font()
    font.setPointSize(font.pointSize() * 2)
    plot.setFont(font)
    QApplication.processEvents()
    assert bottom.style["tickFont"].pointSize() == font.pointSize()
    assert bottom.height() > 1.5 * before


def test_a_narrow_legend_goes_on_below_and_shortens_names_at_last(qtbot):
    window = QWidget()
    qtbot.addWidget(window)
    legend = Legend(window)
    name = "autodiff:grad-checkpoint"
    legend.begin(["mebp", name], method_color)
    for method in ("mebp", name):
        legend.show_value(method, "1.2345")
    wide = legend.sizeHint().width() + 20
    window.resize(wide, 200)
    window.show()
    heights = []
    for width in (wide, wide * 2 // 3, 24 * legend.fontMetrics().averageCharWidth()):
        legend.setGeometry(0, 0, width, legend.heightForWidth(width))
        QApplication.processEvents()
        heights.append(legend.heightForWidth(width))
        shown = [label for label in legend.findChildren(QLabel) if label.isVisible()]
        assert all(legend.rect().contains(label.geometry().translated(label.parent().pos())) for label in shown)
    assert heights[0] < heights[1] == heights[2]
    short = next(label for label in legend.findChildren(QLabel) if label.text().startswith("au"))
    assert "…" in short.text() and name in short.toolTip()
