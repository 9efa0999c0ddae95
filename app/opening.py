"""Choosing a model or a data file from outside the panel: by dialog, by dropping it on the window, on the command line."""

from pathlib import Path
from typing import Literal

from PySide6.QtCore import QMimeData, QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from mesp_core.errors import UsageError


def what_is(path: Path) -> tuple[Literal["model", "data"], Path]:
    """("model", its folder) or ("data", its file), both absolute.

    Raises:
        UsageError: it is neither.
    """
    path = path.expanduser().absolute()
    if path.is_dir():
        if (path / "config.json").is_file():
            return "model", path
        raise UsageError(f"{path} holds no config.json; a model folder has one beside its safetensors files.")
    if path.name == "config.json" or path.suffix == ".safetensors":
        return "model", path.parent
    if path.suffix == ".jsonl":
        return "data", path
    raise UsageError(f"{path} is neither a .jsonl data file nor a model folder (one with a config.json).")


class Opener(QObject):
    """Says what was chosen: `model` a folder, `data` a file, or `refused` with the reason."""

    model = Signal(str)
    data = Signal(str)
    refused = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._window = parent

    def open(self, path: Path) -> None:
        """Take a file or folder for what it is."""
        try:
            kind, chosen = what_is(path)
        except UsageError as error:
            self.refused.emit(str(error))
        else:
            (self.model if kind == "model" else self.data).emit(str(chosen))

    def drop(self, mime: QMimeData) -> None:
        """A model folder and a data file may come together."""
        for url in mime.urls():
            if url.isLocalFile():
                self.open(Path(url.toLocalFile()))

    def ask(self) -> None:
        """A dialog for a data file, or for any file of a model folder."""
        dialog = QFileDialog(self._window, "Open a data file, or any file of a model folder")
        dialog.setObjectName("open_dialog")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilters(["Data and models (*.jsonl config.json *.safetensors)", "All files (*)"])
        self._show(dialog)

    def ask_model(self) -> None:
        """A dialog for a model folder."""
        dialog = QFileDialog(self._window, "Open a model folder")
        dialog.setObjectName("open_model_dialog")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        self._show(dialog)

    def _show(self, dialog: QFileDialog) -> None:
        dialog.fileSelected.connect(lambda name: self.open(Path(name)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
