"""The entry point of `mesp-gui`."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication

from app.settings import Settings
from app.threads.garbage import MainThreadGarbage
from app.window import MainWindow
from mesp_core import __version__
from mesp_core.commands.output import lasting_output
from mesp_core.errors import MespError
from mesp_core.files.bundled import bundled_path
from mesp_core.processes.interruption import StopRequests, heeded

PYTHON_TURN_MS = 200  # how often Python gets a turn to see a signal while Qt waits for events
PATIENCE_S = 20.0  # for a worker to end its step when the system asks us to quit


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the window until it is closed; returns the exit code."""
    with lasting_output():  # the terminal that started us may be closed
        return _show(arguments)


def _show(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    application = QApplication.instance() or QApplication(["mesp-gui"])
    application.setApplicationName("mesp-gui")
    application.setApplicationDisplayName("mesp")
    application.setDesktopFileName("mesp-gui")
    with contextlib.suppress(MespError):  # an icon is no reason not to start
        application.setWindowIcon(QIcon(str(bundled_path("icon"))))
    window = MainWindow(Settings())
    garbage = MainThreadGarbage(window)
    _hear_signals(window)
    _report_defects(window, options.debug)
    window.show()
    QTimer.singleShot(0, window.after_show)
    if options.paths:
        window.opener.open(options.paths)
    code = application.exec()
    window.controller.wait(PATIENCE_S)
    garbage.close()
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mesp-gui", description="Fine-tune with several methods and see what each costs.")
    parser.add_argument("paths", nargs="*", type=Path, help="a model folder and/or a .jsonl file to select")
    parser.add_argument("--debug", action="store_true", help="print tracebacks")
    parser.add_argument("--version", action="version", version=f"mesp-gui {__version__}")
    return parser


def _hear_signals(window: MainWindow) -> None:
    """A Ctrl-C in the terminal or a polite kill stops the run after its step, saves, and closes; a second one ends it."""
    requests = StopRequests(window.close_after_run, window.controller.kill)

    def hear(number: int, frame: object) -> None:
        # In Qt's loop: a window that is closed before that runs is shown, and stays.
        QTimer.singleShot(0, lambda: requests(signal.Signals(number)))

    for number in heeded():
        signal.signal(number, hear)
    # Qt's loop runs in C++, where Python cannot handle a signal.
    turn = QTimer(window, interval=PYTHON_TURN_MS)
    turn.timeout.connect(lambda: None)
    turn.start()


def _report_defects(window: MainWindow, debug: bool) -> None:
    def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
        if debug:
            sys.__excepthook__(kind, error, trace)
        if issubclass(kind, Exception):
            window.report_unexpected(error)

    sys.excepthook = hook


if __name__ == "__main__":
    sys.exit(main())
