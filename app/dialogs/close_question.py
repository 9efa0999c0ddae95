"""The question before a window is closed in which a run goes on."""

from collections.abc import Callable

from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget


class CloseQuestion(QMessageBox):
    """Calls `stop` or `kill`, or neither where the run is to go on."""

    def __init__(self, parent: QWidget, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        super().__init__(
            QMessageBox.Icon.Question, "A run is going on", "A run is going on. Close the window?", parent=parent
        )
        self.setObjectName("close_question")
        self.setInformativeText(
            "“Stop and Close” ends the running step, saves the adapter and the results, and closes. "
            "“End Now” keeps what was saved so far."
        )
        role = QMessageBox.ButtonRole
        self._acts: dict[QPushButton, Callable[[], None]] = {
            self.addButton("Stop and Close", role.AcceptRole): stop,
            self.addButton("End Now", role.DestructiveRole): kill,
        }
        self.addButton("Keep Running", role.RejectRole)
        self.setDefaultButton(next(iter(self._acts)))
        self.buttonClicked.connect(lambda button: self._acts.get(button, lambda: None)())
