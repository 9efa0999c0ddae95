"""The settings dialog: where runs go, how the window looks."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.settings import TEXT_SIZES, Settings
from app.widgets.path_dialog import path_dialog
from app.widgets.theme import APPEARANCES
from mesp_core.files.user_path import user_path


class SettingsDialog(QDialog):
    """Edits `settings`; `applied` is emitted when they were changed."""

    applied = Signal()

    def __init__(self, settings: Settings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.setObjectName("settings_dialog")
        self._settings = settings
        self._out = QLineEdit(str(settings.out_folder), objectName="out_folder")
        self._out.setMinimumWidth(40 * self.fontMetrics().averageCharWidth())
        browse = QPushButton("Choose…", objectName="choose_out_folder")
        browse.clicked.connect(self._choose)
        out_row = QHBoxLayout()
        out_row.addWidget(self._out, 1)
        out_row.addWidget(browse)
        self._appearance = QComboBox(objectName="appearance")
        for name in APPEARANCES:
            self._appearance.addItem("As the system" if name == "system" else name.capitalize(), name)
        self._appearance.setCurrentIndex(APPEARANCES.index(settings.appearance))
        self._text_size = QComboBox(objectName="text_size")
        for percent in TEXT_SIZES:
            self._text_size.addItem(f"{percent} %", percent)
        self._text_size.setCurrentIndex(TEXT_SIZES.index(settings.text_size))
        form = QFormLayout()
        form.addRow("Keep runs in:", out_row)
        form.addRow("Appearance:", self._appearance)
        form.addRow("Text size:", self._text_size)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        column = QVBoxLayout(self)
        column.addLayout(form)
        column.addWidget(buttons)

    def accept(self) -> None:
        """Store and tell."""
        typed = self._out.text().strip()
        if typed:
            self._settings.out_folder = user_path(typed)
        self._settings.appearance = self._appearance.currentData()
        self._settings.text_size = self._text_size.currentData()
        super().accept()
        self.applied.emit()

    def _choose(self) -> None:
        path_dialog(self, "Keep runs in", QFileDialog.FileMode.Directory, self._out.setText, self._out.text()).open()
