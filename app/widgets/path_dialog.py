"""Asking for a file or folder that exists, without waiting for the answer."""

from collections.abc import Callable

from PySide6.QtWidgets import QFileDialog, QWidget


def path_dialog(
    parent: QWidget,
    title: str,
    mode: QFileDialog.FileMode,
    chosen: Callable[[str], None],
    start: str = "",
    name: str = "",
) -> QFileDialog:
    """A dialog that begins in the folder `start`, calls `chosen` with the path, and is gone when it closes. To be opened."""
    dialog = QFileDialog(parent, title, start)
    dialog.setObjectName(name)
    dialog.setFileMode(mode)
    dialog.fileSelected.connect(chosen)
    dialog.finished.connect(dialog.deleteLater)
    return dialog
