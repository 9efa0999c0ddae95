"""A live plot to test."""

import pytest
from plot_driver import METHODS, add

from app.plots.live_plot import LivePlot
from app.plots.quantity import Quantity


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
