"""Takes pictures of the real window: idle, running and finished, light and dark.

    python assets/make_screenshots.py OUT [--model MODEL] [--methods NAMES] [--data FILE] [--steps N] [--seq-len N]

On a machine without a display: `xvfb-run -s "-screen 0 1400x900x24" python assets/make_screenshots.py OUT`.
The two in the README are `running-light.png` and `finished-dark.png` of SmolLM2-135M-Instruct on WikiText-2.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from PySide6.QtCore import QEventLoop, QSettings, QTimer
from PySide6.QtWidgets import QApplication

from app.experiment.experiment import Experiment
from app.settings import Settings
from app.window import MainWindow
from mesp_core.settings.run_config import preset

SIZE = (1280, 800)
APPEARANCES = ("light", "dark")


def wait(milliseconds: int) -> None:
    """Let the window live for a while."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


class Photographer:
    """Takes the same window in both appearances."""

    def __init__(self, window: MainWindow, out: Path) -> None:
        self.window, self.out = window, out

    def take(self, name: str) -> None:
        """NAME-light.png and NAME-dark.png."""
        for appearance in APPEARANCES:
            self.window.settings.appearance = appearance
            self.window.apply_settings()
            wait(300)
            file = self.out / f"{name}-{appearance}.png"
            if not self.window.grab().save(str(file)):
                sys.exit(f"{file} cannot be written")
            print(file)


def main() -> None:
    """Run the comparison in the window and take the pictures on the way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--methods", default="mebp,mesp,lean")
    parser.add_argument("--data", default="sample")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    application = QApplication(["mesp-gui"])
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(QSettings(str(Path(folder) / "settings.ini"), QSettings.Format.IniFormat))
        settings.out_folder = Path(folder) / "runs"
        config = preset(
            "first-run",
            model=options.model,
            data=options.data,
            steps=options.steps,
            seq_len=options.seq_len,
            learning_rate=options.lr,
        )
        settings.experiment = Experiment(config, tuple(options.methods.split(",")))
        window = MainWindow(settings)
        window.resize(*SIZE)
        window.show()
        window.after_show()
        photographer = Photographer(window, options.out)
        wait(4000)  # until the data were read
        photographer.take("idle")

        loop, halfway = QEventLoop(), []

        def on_step(step: object) -> None:
            if step.method == "mesp" and step.step == options.steps // 2 and not halfway:
                halfway.append(step)
                QTimer.singleShot(0, lambda: photographer.take("running"))

        window.controller.stepped.connect(on_step)
        window.controller.ended.connect(lambda end: loop.quit())
        window.actions_.run.trigger()
        loop.exec()
        photographer.take("finished")
        for number, name in enumerate(("summary", "steps", "data", "log")):
            window.view.tabs.setCurrentIndex(number)
            wait(500)
            photographer.take(f"tab-{name}")
        window.close()
        application.processEvents()


if __name__ == "__main__":
    main()
