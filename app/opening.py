"""Choosing a model or a data file from outside the panel: by dialog, by dropping it on the window, on the command line."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QMimeData, QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.widgets.path_dialog import path_dialog
from mesp_core.errors import UsageError
from mesp_core.files.user_path import user_path

Kind = Literal["model", "data"]
CONFIG = "config.json"


def what_is(path: Path) -> tuple[Kind, Path]:
    """("model", its folder) or ("data", its file), both absolute. Any file of a model folder stands for the model.

    Raises:
        UsageError: it is neither.
    """
    path = user_path(path)
    if os.path.isdir(path):
        if os.path.isfile(path / CONFIG):
            return "model", path
        raise UsageError(f"{path} holds no {CONFIG}; a model folder has one beside its safetensors files.")
    if path.suffix.lower() == ".jsonl":
        return "data", path
    if path.name == CONFIG or path.suffix.lower() == ".safetensors" or os.path.isfile(path.parent / CONFIG):
        return "model", path.parent
    raise UsageError(f"{path} is neither a .jsonl data file nor of a model folder (one with a {CONFIG}).")


class Opener(QObject):
    """Says what was chosen: `model` a folder, `data` a file, or `refused` with the reason."""

    model = Signal(str)
    data = Signal(str)
    refused = Signal(str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._window = parent

    def open(self, paths: Sequence[Path]) -> None:
        """Take files and folders for what they are: at most one model and one data file."""
        chosen: dict[Kind, Path] = {}
        for path in paths:
            try:
                kind, found = what_is(path)
            except UsageError as error:
                self.refused.emit(str(error))
                return
            if chosen.setdefault(kind, found) != found:
                what = "models" if kind == "model" else "data files"
                self.refused.emit(f"{chosen[kind]} and {found} are two {what}; a run takes one.")
                return
        if "model" in chosen:
            self.model.emit(str(chosen["model"]))
        if "data" in chosen:
            self.data.emit(str(chosen["data"]))

    def drop(self, mime: QMimeData) -> None:
        """A model folder and a data file may come together."""
        self.open([Path(url.toLocalFile()) for url in mime.urls() if url.isLocalFile()])

    def ask(self) -> None:
        """A dialog for a data file, or for any file of a model folder."""
        title = "Open a data file, or any file of a model folder"
        dialog = path_dialog(self._window, title, QFileDialog.FileMode.ExistingFile, self._open_one, name="open_dialog")
        dialog.setNameFilters([f"Data and models (*.jsonl {CONFIG} *.safetensors)", "All files (*)"])
        dialog.open()

    def ask_model(self) -> None:
        """A dialog for a model folder."""
        mode, name = QFileDialog.FileMode.Directory, "open_model_dialog"
        path_dialog(self._window, "Open a model folder", mode, self._open_one, name=name).open()

    def _open_one(self, name: str) -> None:
        self.open([Path(name)])
