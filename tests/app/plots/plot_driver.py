"""Drives a live plot as a person does, and looks at what it shows."""

import math

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage, QPainter, QWheelEvent
from PySide6.QtWidgets import QApplication

METHODS = ("mebp", "mesp")


SIX = (*METHODS, "mesp-store-h", "autodiff", "mebp:weights=resident", "autodiff:grad-checkpoint")


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


def tick_labels(plot, name):
    """(rectangle, text) of every tick label, in the axis' coordinates."""
    image = QImage(10, 10, QImage.Format.Format_RGB32)
    painter = QPainter(image)
    axis = plot.canvas.getPlotItem().getAxis(name)
    labels = [(rect, text) for rect, _, text in axis.generateDrawSpecs(painter)[2]]
    painter.end()
    return labels


def distance(one, other):
    return math.dist(one.getRgb()[:3], other.getRgb()[:3])
