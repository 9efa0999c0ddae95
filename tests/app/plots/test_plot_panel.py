"""The three plots together, fed with events."""

import math
import time

import pytest
from PySide6.QtCore import QRect
from PySide6.QtGui import QImage, QPalette
from PySide6.QtWidgets import QApplication, QLabel

from app.plots.live_plot import LivePlot
from app.plots.panel import PlotPanel
from app.widgets.theme import method_color
from mesp_core.runs import events


@pytest.fixture
def panel(qtbot):
    made = PlotPanel()
    qtbot.addWidget(made)
    made.resize(950, 480)
    with qtbot.waitExposed(made):
        made.show()
    made.begin(["mebp", "mesp"])
    return made


def step(method, number, loss=2.0, t_s=None, footprint_peak_mb=None, allocator_peak_mb=80.0):
    return events.Step(
        method, number, loss, 0.5, 128, 127, 1e-3, allocator_peak_mb, {}, footprint_peak_mb=footprint_peak_mb, t_s=t_s
    )


def test_ten_thousand_events_cause_a_handful_of_redraws(qtbot, panel, monkeypatch):
    drawn = []
    draw = LivePlot.draw
    monkeypatch.setattr(LivePlot, "draw", lambda plot: (drawn.append(plot), draw(plot)))
    for number in range(1, 10_001):
        panel.add_memory(events.Memory("mebp", number * 0.1, 100.0))
        panel.add_step(step("mebp", number, 1.0 + 1 / number, number * 0.1))
    qtbot.waitUntil(lambda: panel.loss.legend.values()["mebp"] == "1.0001 · 0.500 s")
    qtbot.wait(100)
    assert len(drawn) <= 2 * 3
    assert len(panel.loss.curves["mebp"].points) == len(panel.memory.curves["mebp"].marks) == 10_000


def test_updates_in_the_flow_of_a_run_stay_below_20_a_second(qtbot, panel, monkeypatch):
    drawn = []
    draw = LivePlot.draw
    monkeypatch.setattr(LivePlot, "draw", lambda plot: (drawn.append(plot), draw(plot)))
    started = time.monotonic()
    for number in range(1, 101):
        panel.add_step(step("mesp", number))
        qtbot.wait(5)
    seconds = time.monotonic() - started
    qtbot.waitUntil(lambda: drawn.count(panel.loss) >= 2)
    assert drawn.count(panel.loss) <= 20 * seconds + 2


def test_legends_show_the_values_of_now(panel):
    for number in (1, 2, 3):
        panel.add_memory(events.Memory("mebp", number, 100.0 * number))
        panel.add_step(step("mebp", number, 3.0 - number / 2, float(number)))
    panel.add_memory(events.Memory("mebp", 4.0, 50.0))
    panel.draw()
    QApplication.processEvents()  # the legend makes room for what it has to show
    assert panel.loss.legend.values() == {"mebp": "1.5000 · 0.500 s", "mesp": "–"}
    assert panel.memory.legend.values() == {"mebp": "now 50.0 · peak 300.0 MB", "mesp": "–"}
    shown = {label.text() for label in panel.memory.findChildren(QLabel) if label.isVisible()}
    assert {"mebp", "mesp", "now 50.0 · peak 300.0 MB", "allocator peak of a step", "footprint peak"} <= shown


def test_of_a_worker_that_is_gone_the_legend_shows_only_the_peak(qtbot, panel):
    for method in ("mebp", "mesp"):
        panel.add_memory(events.Memory(method, 1.0, 120.0))
        panel.add_memory(events.Memory(method, 2.0, 90.0))
        panel.add_step(step(method, 1, t_s=2.0))
    panel.end_method("mebp")
    qtbot.waitUntil(lambda: panel.memory.legend.values()["mebp"] == "peak 120.0 MB")
    assert panel.memory.legend.values()["mesp"] == "now 90.0 · peak 120.0 MB"
    assert panel.loss.legend.values()["mebp"] == "2.0000 · 0.500 s"
    panel.begin(["mebp", "mesp"])
    panel.end_method("mesp")  # before anything came of it
    panel.add_memory(events.Memory("mebp", 1.0, 50.0))
    panel.draw()
    assert panel.memory.legend.values() == {"mebp": "now 50.0 · peak 50.0 MB", "mesp": "–"}


def test_the_dashed_line_lies_at_the_footprint_peak_of_samples_and_steps(panel):
    line = panel.memory.curves["mebp"].peak_line
    assert not line.isVisible()
    panel.add_memory(events.Memory("mebp", 1.0, 120.0))
    panel.add_memory(events.Memory("mebp", 2.0, 90.0))
    panel.draw()
    assert line.isVisible() and line.value() == 120.0
    panel.add_step(step("mebp", 1, t_s=2.5, footprint_peak_mb=150.0))  # between two samples
    panel.draw()
    assert line.value() == 150.0
    assert panel.memory.canvas.getViewBox().viewRange()[1][1] > 150.0
    assert not panel.memory.curves["mesp"].peak_line.isVisible()


def test_allocator_peaks_stand_at_the_time_of_their_step(panel):
    marks = panel.memory.curves["mesp"].marks
    panel.add_memory(events.Memory("mesp", 1.5, 60.0))
    panel.add_step(step("mesp", 1, t_s=1.7, allocator_peak_mb=40.0))
    panel.add_step(step("mesp", 2, t_s=2.9, allocator_peak_mb=45.0))
    assert (marks.x.tolist(), marks.y.tolist()) == ([1.7, 2.9], [40.0, 45.0])


def test_steps_without_a_time_stand_at_the_last_sample_of_their_own_method(panel):
    panel.add_step(step("mesp", 1))
    panel.add_memory(events.Memory("mesp", 1.5, 60.0))
    panel.add_memory(events.Memory("mebp", 9.0, 60.0))
    panel.add_step(step("mesp", 2))
    assert panel.memory.curves["mesp"].marks.x.tolist() == [0.0, 1.5]


def test_memory_and_time_begin_at_zero_and_loss_does_not(panel):
    panel.add_memory(events.Memory("mebp", 5.0, 300.0))
    panel.add_step(step("mebp", 1, 2.0, 5.0))
    panel.draw()
    assert panel.memory.canvas.getViewBox().viewRange()[0][0] == 0
    assert panel.memory.canvas.getViewBox().viewRange()[1][0] == 0
    assert panel.step_time.canvas.getViewBox().viewRange()[1][0] == 0
    assert panel.loss.canvas.getViewBox().viewRange()[1][0] > 1


def test_a_diverged_run_is_drawn(panel):
    panel.add_step(step("mebp", 1, 2.0))
    panel.add_step(step("mebp", 2, math.nan))
    panel.add_step(step("mesp", 1, math.inf))
    panel.draw()
    panel.grab()
    assert panel.loss.legend.values() == {"mebp": "not finite · 0.500 s", "mesp": "not finite · 0.500 s"}


def test_begin_forgets_the_last_run(qtbot, panel):
    panel.add_step(step("mebp", 1, 2.0))
    panel.begin(["mesp", "lean"])
    qtbot.wait(80)
    assert panel.loss.legend.values() == {"mesp": "–", "lean": "–"}
    assert not panel.loss.curves["mesp"].points


def test_only_the_loss_plot_says_what_to_press(qtbot):
    idle = PlotPanel()
    qtbot.addWidget(idle)
    idle.show()
    assert [plot.hint.text() for plot in (idle.loss, idle.step_time, idle.memory)] == [
        "Press Run to compare the ticked methods",
        "",
        "",
    ]
    assert idle.loss.hint.isVisible()


def test_loss_stands_over_step_time_and_memory_beside_them(panel):
    loss, step_time, memory = (
        QRect(plot.mapTo(panel, plot.rect().topLeft()), plot.size()) for plot in (panel.loss, panel.step_time, panel.memory)
    )
    assert loss.left() == step_time.left() and loss.bottom() < step_time.top() and loss.right() < memory.left()
    assert 1.5 < loss.height() / step_time.height() < 2.5
    # the frames of the two curves with the same axis align
    lefts = [plot.canvas.getViewBox().sceneBoundingRect().left() for plot in (panel.loss, panel.step_time)]
    assert lefts[0] == lefts[1]


FOUR = ["mebp", "mesp", "mesp-store-h", "autodiff:grad-checkpoint"]
SIX = [*FOUR, "autodiff", "mebp:weights=resident"]


def scaled(application, percent):
    font = application.font()
    font.setPointSizeF(font.pointSizeF() * percent / 100)
    application.setFont(font)


def run(panel, methods, steps=40):
    panel.begin(methods)
    for method in methods:
        for number in range(1, steps + 1):
            panel.add_memory(events.Memory(method, 1.0 * number, 1300.0 + number))
            panel.add_step(step(method, number, 3.0 / number, 1.0 * number, 1444.4, 1111.1))
    panel.draw()
    for _ in range(5):  # what is told changes what has to have room
        QApplication.processEvents()


@pytest.mark.parametrize("methods", [FOUR[:1], FOUR[:2], FOUR, SIX], ids=len)
@pytest.mark.parametrize("percent", [100, 200])
def test_at_its_smallest_everything_can_be_read(qtbot, qapp, percent, methods):
    scaled(qapp, percent)
    panel = PlotPanel()
    qtbot.addWidget(panel)
    panel.show()
    panel.resize(1, 1)
    run(panel, methods)
    panel.resize(panel.minimumSizeHint())
    QApplication.processEvents()
    assert panel.size() == panel.minimumSizeHint()
    for label in panel.findChildren(QLabel):
        if label.isVisible() and label.text() and not label.wordWrap():
            place = QRect(label.mapTo(panel, label.rect().topLeft()), label.size())
            assert label.width() >= label.fontMetrics().size(0, label.text()).width(), label.text()
            assert label.height() >= label.fontMetrics().height() - 1
            assert label.visibleRegion().boundingRect() == label.rect(), label.text()
            assert panel.rect().contains(place)
    line = panel.fontMetrics().height()
    for plot, lines in ((panel.loss, 4), (panel.step_time, 3), (panel.memory, 6)):
        view = plot.canvas.getViewBox().sceneBoundingRect()
        assert view.height() >= lines * line - 2 and view.width() > 4 * line
        viewport = plot.canvas.viewport()
        assert viewport.size() == plot.canvas.size() and viewport.visibleRegion().boundingRect() == viewport.rect()
        for name in ("left", "bottom"):
            label = plot.canvas.getPlotItem().getAxis(name).label
            if label.isVisible():
                place = label.mapRectToScene(label.boundingRect().adjusted(4, 4, -4, -4))  # less its margin
                assert plot.canvas.sceneRect().contains(place), label.toPlainText()


@pytest.mark.parametrize("methods", [FOUR, SIX], ids=len)
def test_it_fits_a_small_screen_together_with_the_rest_of_the_window(qtbot, panel, methods):
    run(panel, methods)
    smallest, line = panel.minimumSizeHint(), panel.fontMetrics().height()
    assert smallest.width() <= 1024 - 330 - 20
    assert smallest.height() <= 24 * line  # of 700 pixels at 14 a line, 180 are the tabs, and bars and strip another 170


def test_it_fits_1280_by_800_with_text_twice_as_large(qtbot, qapp):
    scaled(qapp, 200)
    panel = PlotPanel()
    qtbot.addWidget(panel)
    panel.show()
    run(panel, FOUR)
    smallest = panel.minimumSizeHint()
    assert smallest.width() <= 66 * panel.fontMetrics().averageCharWidth()
    assert smallest.height() <= 17 * panel.fontMetrics().height()


def test_a_larger_font_makes_the_smallest_size_larger_at_once(qtbot, qapp, panel):
    run(panel, FOUR)
    before = panel.minimumSizeHint()
    scaled(qapp, 200)
    QApplication.processEvents()
    assert panel.minimumSizeHint().height() > 1.8 * before.height()
    assert panel.minimumSizeHint().width() > 1.8 * before.width()


def test_the_picture_is_twice_as_large_on_the_same_ground_without_the_buttons(panel, tmp_path):
    for number in range(1, 20):
        panel.add_memory(events.Memory("mebp", float(number), 100.0))
        panel.add_step(step("mebp", number, 3.0 / number, float(number)))
    data = panel.png()
    assert data.startswith(b"\x89PNG")
    image = QImage.fromData(data)
    assert (image.width(), image.height()) == (1900, 960)
    ground = panel.palette().color(QPalette.ColorRole.Base)
    assert image.pixelColor(0, 0) == image.pixelColor(1899, 959) == ground
    for plot in (panel.loss, panel.memory):
        assert plot.follow.isVisible()
        follow = QRect(plot.follow.mapTo(panel, plot.follow.rect().topLeft()) * 2, plot.follow.size() * 2)
        assert colors(image, follow) == {ground.name()}
        canvas = QRect(plot.canvas.mapTo(panel, plot.canvas.rect().topLeft()) * 2, plot.canvas.size() * 2)
        assert method_color("mebp").name() in colors(image, canvas)
        legend = QRect(plot.legend.mapTo(panel, plot.legend.rect().topLeft()) * 2, plot.legend.size() * 2)
        assert method_color("mebp").name() in colors(image, legend)


def test_lines_of_the_picture_are_as_wide_as_on_the_screen(panel):
    for number in range(1, 2000):
        panel.add_memory(events.Memory("mebp", float(number), 137.0))  # beside the lines of the grid
    panel.memory.raise_peak("mebp", 400.0)
    panel.draw()
    shown, picture = panel.grab().toImage(), QImage.fromData(panel.png())
    place = panel.memory.canvas.mapTo(panel, panel.memory.canvas.rect().center())

    def thickness(image, scale):
        lower = range(image.height() // 2, image.height())
        return sum(image.pixelColor(place.x() * scale, y) == method_color("mebp") for y in lower)

    assert 1 <= thickness(shown, 1) < thickness(picture, 2)
    assert panel.grab().toImage() == shown


def colors(image, rect):
    return {
        image.pixelColor(x, y).name() for x in range(rect.left(), rect.right(), 2) for y in range(rect.top(), rect.bottom())
    }
