"""Run by test_responsiveness.py in a process of its own: starts mesp-gui, runs a comparison, prints what was measured.

    python probe_window.py STARTED      (time.time() just before this process was started)

Prints one JSON object: cold_start_s, cold_start_cpu_s, longest_stall_ms, busiest_ms, stalls_over_50_ms, ticks,
mlx_loaded, problem, methods.
"""

import json
import sys
import time

EVERY_MS = 5


class StallProbe:
    """A timer on the main thread that measures how late it is itself."""

    def __init__(self):
        from PySide6.QtCore import Qt, QTimer

        self.late_ms = []  # how late each tick came
        self.busy_ms = []  # how much of the time before it this thread was computing, not waiting for a core
        self._timer = QTimer(timerType=Qt.TimerType.PreciseTimer, interval=EVERY_MS)
        self._timer.timeout.connect(self._tick)

    def start(self):
        self._last, self._cpu = time.perf_counter(), time.thread_time()
        self._timer.start()

    def stop(self):
        self._timer.stop()

    def _tick(self):
        now, cpu = time.perf_counter(), time.thread_time()
        self.late_ms.append(1000 * (now - self._last) - EVERY_MS)
        self.busy_ms.append(1000 * (cpu - self._cpu))
        self._last, self._cpu = now, cpu


def main():
    started, report = float(sys.argv[1]), {}
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    application = QApplication(["mesp-gui"])
    from app.main import main as start_app
    from app.window import MainWindow

    def window():
        return next((widget for widget in application.topLevelWidgets() if isinstance(widget, MainWindow)), None)

    def when(condition, action):
        """Act as soon as the condition holds."""
        if condition():
            action()
        else:
            QTimer.singleShot(2, lambda: when(condition, action))

    probe = StallProbe()

    def usable():
        report["cold_start_s"], report["cold_start_cpu_s"] = time.time() - started, time.process_time()
        window().panel.prepared.connect(lambda prepared: QTimer.singleShot(500, run))

    def run():
        if window().controller.is_running or "longest_stall_ms" in report:
            return
        window().controller.ended.connect(ended)
        probe.start()
        window().actions_.run.trigger()

    def ended(end):
        probe.stop()
        late = sorted(probe.late_ms)
        report["longest_stall_ms"], report["busiest_ms"] = late[-1], max(probe.busy_ms)
        report["stalls_over_50_ms"] = sum(one > 50 for one in late)
        report["ticks"] = len(late)
        report["mlx_loaded"] = sorted(
            name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm", "transformers")
        )
        report["problem"] = end.problem
        report["methods"] = {name: outcome.kind for name, outcome in end.methods.items()}
        QTimer.singleShot(200, lambda: window().close())

    when(lambda: window() is not None and window().isVisible(), usable)
    code = start_app([])
    print(json.dumps(report))
    sys.exit(code)


if __name__ == "__main__":
    main()
