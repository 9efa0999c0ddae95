"""Axis labels and tick labels: what they say, and that nothing lies on anything."""

import itertools

import pytest
from plot_driver import ranges, tick_labels
from PySide6.QtWidgets import QApplication

from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity


def test_the_axes_say_what_and_in_which_unit_and_steps_have_no_fractions(plot):
    texts = {axis: plot.canvas.getPlotItem().getAxis(axis) for axis in ("bottom", "left")}
    assert texts["bottom"].label.toPlainText().strip() == "step"
    assert texts["left"].label.toPlainText().strip() == "loss (nats per token)"
    assert texts["bottom"].tickSpacing(1, 3, 400) == [(1.0, 0.0)]
    spacing = texts["left"].tickSpacing(0, 1, 40)[0][0]
    assert spacing * 40 >= 20  # two labels of a low axis do not lie on each other
    assert not any(axis.autoSIPrefix for axis in texts.values())


def test_noise_in_the_last_digits_is_not_blown_up(plot):
    plot.begin(["mesp"])
    for step in range(1, 101):
        plot.add("mesp", step, 2.0 + 1e-9 * (step % 2))
    plot.draw()
    low, high = ranges(plot)[1]
    assert high - low > 1e-4
    assert all(len(text) <= 7 for _, text in tick_labels(plot, "left"))


@pytest.mark.parametrize("percent", [100, 200])
@pytest.mark.parametrize("last", [3, 200, 100_000, 5_000_000])
def test_tick_labels_do_not_overlap(qtbot, qapp, last, percent):
    font = qapp.font()
    font.setPointSizeF(font.pointSizeF() * percent / 100)
    qapp.setFont(font)
    plot = LivePlot("Loss", Quantity("step", whole=True), Quantity("loss", "nats per token", 4))
    qtbot.addWidget(plot)
    plot.begin(["mesp"])
    for step in range(1, 4):
        plot.add("mesp", step * last / 3, 10.0 / step)
    for size in (plot.minimumSizeHint(), plot.minimumSizeHint() * 2):
        plot.resize(size)
        plot.show()
        plot.draw()
        plot.grab()
        for name in ("bottom", "left"):
            rects = [rect for rect, _ in tick_labels(plot, name)]
            assert rects
            assert not any(one.intersects(other) for one, other in itertools.combinations(rects, 2))


def test_where_two_tick_labels_have_no_room_there_is_one(plot):
    axis = plot.canvas.getPlotItem().getAxis("bottom")
    for low, high in ((33_000, 99_000), (120_000, 480_000)):
        ((spacing, values),) = axis.tickValues(low, high, 60)
        assert len(values) == 1 and low <= values[0] <= high
        assert axis.tickStrings(values, 1.0, spacing) == [f"{values[0]:.0f}"]
    assert len(axis.tickValues(33_000, 99_000, 600)[0][1]) == 3


def test_an_axis_label_gives_way_where_it_does_not_fit(qtbot):
    loss = Quantity("loss", "nats per token", 4, short_unit="nats/token")
    plot = LivePlot("Loss", Quantity("step", whole=True), loss)
    qtbot.addWidget(plot)
    plot.show()
    axis, seen = plot.canvas.getPlotItem().getAxis("left"), []
    for height in range(400, plot.minimumSizeHint().height() - 1, -2):
        plot.resize(400, height)
        QApplication.processEvents()
        text = axis.label.toPlainText().strip()
        margin = axis.label.document().documentMargin()
        extent = axis.label.boundingRect().adjusted(margin, margin, -margin, -margin)
        assert plot.canvas.sceneRect().contains(axis.label.mapRectToScene(extent))
        seen += [text] if text not in seen else []
    assert seen == list(loss.labels)
    assert axis.toolTip() == loss.labels[0]


def test_text_follows_the_font(plot):
    bottom = plot.canvas.getPlotItem().getAxis("bottom")
    before = bottom.height()
    font = plot.font()
    font.setPointSize(font.pointSize() * 2)
    plot.setFont(font)
    QApplication.processEvents()
    assert bottom.style["tickFont"].pointSize() == font.pointSize()
    assert bottom.height() > 1.5 * before
