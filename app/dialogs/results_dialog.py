"""Export of results: one dialog, the file's ending decides what is written."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from mesp_core.errors import UsageError
from mesp_core.files.whole_file import write_whole
from mesp_core.runs.results import Results

# ending -> what it is, for the dialog
FORMATS = {
    ".json": "Everything, as JSON (*.json)",
    ".csv": "Every step, as CSV (*.csv)",
    ".md": "Comparison table, as Markdown (*.md)",
    ".png": "Picture of the plots, as PNG (*.png)",
}


def write_results(results: Results, plots_png: Callable[[], bytes], file: Path) -> None:
    """Write `file` whole or not at all, as its ending says.

    Raises:
        UsageError: for another ending.
        MespError: if it cannot be written.
    """
    ending = file.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"{file.name}: the ending says what to write; use one of {', '.join(FORMATS)}.")
    if ending == ".json":
        results.save(file)
    else:
        content = {".csv": results.to_csv, ".md": results.to_markdown, ".png": plots_png}[ending]
        write_whole(file, content())


class ResultsDialog(QFileDialog):
    """Asks for a file; `chosen` gives it with an ending."""

    chosen = Signal(Path)

    def __init__(self, folder: Path, parent: QWidget | None = None) -> None:
        super().__init__(parent, "Export results", str(folder))
        self.setObjectName("results_dialog")
        self.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        self.setFileMode(QFileDialog.FileMode.AnyFile)
        self.setNameFilters(list(FORMATS.values()))
        self.selectNameFilter(FORMATS[".json"])
        self.setDefaultSuffix("json")
        self.selectFile("comparison")
        self.filterSelected.connect(lambda _: self.setDefaultSuffix(self._ending().lstrip(".")))
        self.fileSelected.connect(self._on_selected)

    def _ending(self) -> str:
        """That of the chosen kind."""
        return next((ending for ending, text in FORMATS.items() if text == self.selectedNameFilter()), ".json")

    def _on_selected(self, name: str) -> None:
        # A dot in the name, as in "Qwen2.5 run", passes for an ending.
        ended = Path(name).suffix.lower() in FORMATS
        self.chosen.emit(Path(name if ended else name + self._ending()))
