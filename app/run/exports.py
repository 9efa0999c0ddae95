"""What can be taken out of a run that has ended: an adapter, the results, its folder."""

from pathlib import Path

from PySide6.QtCore import QObject, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.dialogs.adapter_dialog import AdapterDialog
from app.dialogs.results_dialog import ResultsDialog, write_results
from app.plots.panel import PlotPanel
from app.run.run_thread import RunEnd
from app.settings import Settings
from app.threads.background import Latest, Report, sentence


class Exports(QObject):
    """Works on `end`, the last run's; tells `saved(text, folder)` or `failed(text)`."""

    saved = Signal(str, Path)
    failed = Signal(str)

    def __init__(self, settings: Settings, plots: PlotPanel, parent: QWidget) -> None:
        super().__init__(parent)
        self._window, self._settings, self._plots = parent, settings, plots
        self.end: RunEnd | None = None
        # 50,000 steps take seconds; and what was asked for is written to its end, also when the window closes.
        self._writing = Latest(self, may_hang=False)
        self._writing.done.connect(lambda file: self.saved.emit(f"The results are in {file}.", file.parent))
        self._writing.failed.connect(lambda error: self.failed.emit(sentence(error)))

    def close_background(self) -> None:
        """Wait for what is being written."""
        self._writing.close()

    @property
    def has_adapter(self) -> bool:
        """Whether any method has left an adapter."""
        return self.end is not None and bool(self.end.adapters)

    @property
    def has_results(self) -> bool:
        """Whether there is anything to compare."""
        return self.end is not None and self.end.results is not None

    @property
    def has_folder(self) -> bool:
        """Whether the run has left a folder."""
        return self.end is not None and self.end.out is not None and self.end.out.is_dir()

    def ask_adapter(self) -> None:
        """Ask which adapter goes where, and copy it there."""
        if not self.has_adapter:
            return
        model = Path(self.end.results.config["model"]).name.replace(":", "-")
        dialog = AdapterDialog(self.end.adapters, self._settings.out_folder / "adapters" / model, self._window)
        dialog.exported.connect(lambda method, folder: self.saved.emit(f"The adapter of {method} is in {folder}.", folder))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def ask_results(self) -> None:
        """Ask for a file and write the results to it."""
        if not self.has_results:
            return
        dialog = ResultsDialog(self.end.out or self._settings.out_folder, self._window)
        dialog.chosen.connect(self._write)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def show_folder(self) -> None:
        """Show the run's folder in the file manager."""
        if self.has_folder:
            show_in_files(self.end.out)

    def _write(self, file: Path) -> None:
        results = self.end.results
        png = self._plots.png() if file.suffix.lower() == ".png" else b""  # widgets are painted on this thread only

        def work(report: Report) -> Path:
            write_results(results, lambda: png, file)
            return file

        self._writing.start(work)


def show_in_files(folder: Path) -> None:
    """Open a folder in the platform's file manager."""
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder)))
