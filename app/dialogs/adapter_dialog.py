"""Export of an adapter: which method's, and to which folder."""

import os
from collections.abc import Mapping
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.widgets.path_dialog import path_dialog
from app.widgets.plain import PlainLabel
from mesp_core.adapters.export import export_adapter
from mesp_core.adapters.folder import CONFIG_FILE
from mesp_core.errors import MespError
from mesp_core.files.user_path import user_path


class AdapterDialog(QDialog):
    """Copies an adapter, as mlx-lm reads it, to a folder of the person's choice; `exported` says where it went."""

    exported = Signal(str, Path)

    def __init__(self, adapters: Mapping[str, Path], folder: Path, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Export adapter")
        self.setObjectName("adapter_dialog")
        self._adapters = dict(adapters)
        self._method = QComboBox(objectName="adapter_method")
        self._method.addItems(list(self._adapters))
        # The last is what a person who stopped a run, or added a method to the baseline, means.
        self._method.setCurrentIndex(len(self._adapters) - 1)
        self._folder = QLineEdit(str(folder), objectName="adapter_folder")
        self._folder.setMinimumWidth(44 * self.fontMetrics().averageCharWidth())
        choose = QPushButton("Choose…", objectName="choose_adapter_folder")
        choose.clicked.connect(self._choose)
        row = QHBoxLayout()
        row.addWidget(self._folder, 1)
        row.addWidget(choose)
        form = QFormLayout()
        form.addRow("Method:", self._method)
        form.addRow("New folder:", row)
        self._problem = PlainLabel("adapter_problem", "bad")
        about = QLabel("The folder gets adapters.safetensors and adapter_config.json; mlx_lm reads it with --adapter-path.")
        about.setWordWrap(True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Save | QDialogButtonBox.StandardButton.Cancel)
        buttons.button(QDialogButtonBox.StandardButton.Save).setText("Export")
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.addLayout(form)
        column.addWidget(about)
        column.addWidget(self._problem)
        column.addWidget(buttons)

    def accept(self) -> None:
        """Copy; where that cannot be, say why and stay open."""
        typed = self._folder.text().strip()
        target = user_path(typed)
        if not typed.startswith(("/", "~")):
            self._complain("Name a folder with its whole path, beginning with / or ~.")
            return
        if os.path.exists(target / CONFIG_FILE):
            self._ask_to_replace(target)
            return
        self._export(target)

    def _export(self, target: Path) -> None:
        method = self._method.currentText()
        try:
            export_adapter(self._adapters[method], target)
        except MespError as error:
            self._complain(str(error))
            return
        super().accept()
        self.exported.emit(method, target)

    def _ask_to_replace(self, target: Path) -> None:
        question = QMessageBox(QMessageBox.Icon.Question, "Replace the adapter?", "", parent=self)
        question.setTextFormat(Qt.TextFormat.PlainText)
        question.setText(f"There is an adapter in {target}. Replace it?")
        replace = question.addButton("Replace", QMessageBox.ButtonRole.AcceptRole)
        question.addButton(QMessageBox.StandardButton.Cancel)
        question.buttonClicked.connect(lambda button: self._export(target) if button is replace else None)
        question.finished.connect(question.deleteLater)
        question.open()

    def _complain(self, message: str) -> None:
        self._problem.set_text(message)

    def _choose(self) -> None:
        typed = Path(self._folder.text().strip() or ".")
        path_dialog(
            self,
            "Folder to put the adapter's folder in",
            QFileDialog.FileMode.Directory,
            lambda parent: self._folder.setText(str(Path(parent) / typed.name)),
            str(typed.parent),
        ).open()
