"""How fast the plots are with long runs in them: frames per second while panning, milliseconds per live update.

    python assets/benchmark_plots.py --points 100000 --frames 120

Uses the display there is; QT_QPA_PLATFORM=offscreen needs none. A frame is what a drag of the mouse causes: the plots are
moved, and events are handled until every one of them has been painted.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.plots.live_plot import LivePlot
from app.plots.panel import PlotPanel
from mesp_core.runs import events

METHODS = ("mebp", "mesp")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=100_000, help="points of every curve (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=120, help="frames that are timed (default: %(default)s)")
    parser.add_argument("--size", default="950x480", help="of the panel, WIDTHxHEIGHT (default: %(default)s)")
    arguments = parser.parse_args()

    app = QApplication.instance() or QApplication(sys.argv[:1])
    panel = PlotPanel()
    panel.resize(*map(int, arguments.size.split("x")))
    panel.show()
    started = time.perf_counter()
    add_run(panel, arguments.points)
    print(f"{arguments.points} points × {len(METHODS)} methods × 3 plots, {arguments.size}, {app.platformName()}")
    print(f"adding them       {1e6 * (time.perf_counter() - started) / arguments.points / len(METHODS):8.1f} µs a step")
    panel.draw()
    app.processEvents()

    cpu = time.process_time()
    live = time_live(app, panel, arguments.points, arguments.frames)
    cpu = (time.process_time() - cpu) / arguments.frames
    print(
        f"live update       {1000 * np.mean(live):8.1f} ms each (append, redraw), median {1000 * np.median(live):.1f}, "
        f"slowest {1000 * max(live):.1f}, CPU {1000 * cpu:.1f} ms"
    )
    for zoom in (1.0, 0.5, 0.01):
        for name, plots in (("all three plots", [panel.loss, panel.memory, panel.step_time]), ("loss alone", [panel.loss])):
            cpu = time.process_time()
            frames = time_panning(app, plots, arguments.frames, zoom)
            cpu = (time.process_time() - cpu) / arguments.frames
            print(
                f"panning {100 * zoom:4.0f} % in view, {name:16}{1 / np.mean(frames):7.1f} frames/s, "
                f"median {1000 * np.median(frames):.1f}, slowest {1000 * max(frames):.1f}, CPU {1000 * cpu:.1f} ms a frame"
            )


def add_run(panel: PlotPanel, points: int) -> None:
    """A noisy run of every method, as it would come from the workers."""
    panel.begin(METHODS)
    random = np.random.default_rng(0)
    noise = random.random(points)
    for method, memory_mb in zip(METHODS, (360.0, 136.0), strict=True):
        footprint = memory_mb * (0.6 + 0.4 * random.random(points))
        for index in range(points):
            add_point(panel, method, index + 1, 1.5 + noise[index] + 20 / (index + 10), footprint[index])


def add_point(panel: PlotPanel, method: str, step: int, loss: float, footprint_mb: float) -> None:
    """A step of 0.7 s and the memory sample before it."""
    panel.add_memory(events.Memory(method, 0.7 * step, footprint_mb))
    panel.add_step(
        events.Step(method, step, loss, 0.7 + 0.1 * (loss % 1), 256, 255, 1e-3, footprint_mb * 0.8, {}, t_s=0.7 * step)
    )


class Painted(QObject):
    """Tells when all of the plots have been painted."""

    def __init__(self, app: QApplication, plots: list[LivePlot]) -> None:
        super().__init__()
        self._app, self._viewports, self._left = app, {plot.canvas.viewport() for plot in plots}, set()
        for viewport in self._viewports:
            viewport.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Look, and let it pass."""
        if event.type() == QEvent.Type.Paint:
            self._left.discard(watched)
        return False

    def wait(self) -> None:
        """Handle events until all have been painted since the call."""
        self._left = set(self._viewports)
        while self._left:
            self._app.processEvents()


def time_live(app: QApplication, panel: PlotPanel, points: int, frames: int) -> list[float]:
    """Seconds of every update while the curves grow and the view follows."""
    painted = Painted(app, [panel.loss, panel.memory, panel.step_time])
    times = []
    for frame in range(frames):
        started = time.perf_counter()
        for method in METHODS:
            add_point(panel, method, points + frame + 1, 1.5, 120.0)
        panel.draw()
        painted.wait()
        times.append(time.perf_counter() - started)
    return times


def time_panning(app: QApplication, plots: list[LivePlot], frames: int, zoom: float) -> list[float]:
    """Seconds of every frame while the plots are moved, with a share `zoom` of the run in view."""
    for plot in plots:
        plot.follow.setChecked(True)
        plot.follow.setChecked(False)
        plot.canvas.getViewBox().scaleBy(x=zoom)
    app.processEvents()
    painted = Painted(app, plots)
    times = []
    for frame in range(frames):
        started = time.perf_counter()
        for plot in plots:
            view = plot.canvas.getViewBox()
            left, right = view.viewRange()[0]
            view.translateBy(x=(right - left) * (0.004 if frame < frames / 2 else -0.004))
        painted.wait()
        times.append(time.perf_counter() - started)
    return times


if __name__ == "__main__":
    main()
