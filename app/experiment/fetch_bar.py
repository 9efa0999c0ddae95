"""A button that brings a model to this machine, its progress, and a way to give up."""

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QVBoxLayout, QWidget

from app.threads.background import Latest, Report, sentence
from app.widgets.plain import PlainLabel

STARTING = "Starting…"


class FetchBar(QWidget):
    """`fetch(model, report)` runs in the background once the button is pressed."""

    fetched = Signal()
    failed = Signal(str)

    def __init__(self, fetch: Callable[[str, Report], Any]) -> None:
        super().__init__()
        self.setObjectName("fetch_bar")
        self._fetch, self._model = fetch, ""
        self._latest = Latest(self)
        self._latest.progress.connect(self._show_progress)
        self._latest.done.connect(lambda _: self.fetched.emit())
        self._latest.failed.connect(lambda error: self.failed.emit(sentence(error)))
        self._latest.busy_changed.connect(self._show_busy)
        self._say = PlainLabel("fetch_says")
        self._button, self._cancel = QPushButton("Download"), QPushButton("Cancel")
        self._button.setObjectName("fetch")
        self._button.clicked.connect(self._start)
        self._cancel.setObjectName("cancel_fetch")
        self._cancel.clicked.connect(self.cancel)
        self._bar = QProgressBar(maximum=1000)
        self._bar.setObjectName("fetch_progress")
        self._bar.setAccessibleName("Progress of fetching the model")
        row = QHBoxLayout()
        for widget in (self._button, self._bar, self._cancel):
            row.addWidget(widget)
        row.addStretch()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._say)
        layout.addLayout(row)
        self.hide()

    @property
    def busy(self) -> bool:
        """Whether something is being fetched."""
        return self._latest.busy

    def offer(self, model: str) -> None:
        """Show the button for a model that is not here."""
        self.cancel()
        self._model = model
        self._button.setText("Create" if model.startswith("synthetic:") else "Download")
        self._show_busy(False)
        self.show()

    def withdraw(self) -> None:
        """Nothing is to be fetched any more."""
        self.cancel()
        self.hide()

    def cancel(self) -> None:
        """Give up what is being fetched; what came of a download is kept by the hub's cache for the next try."""
        self._latest.cancel()

    def close_background(self) -> None:
        """End the thread."""
        self._latest.close()

    def _start(self) -> None:
        model = self._model
        self._bar.setValue(0)
        self._latest.start(lambda report: self._fetch(model, report), STARTING)

    def _show_progress(self, message: str, fraction: float) -> None:
        self._say.set_text(message)
        self._bar.setValue(round(1000 * fraction))

    def _show_busy(self, busy: bool) -> None:
        had_focus = self._button.hasFocus()
        self._button.setVisible(not busy)
        self._bar.setVisible(busy)
        self._cancel.setVisible(busy)
        if busy:
            self._say.set_text(STARTING)
            if had_focus:  # the one takes the other's place
                self._cancel.setFocus()
        else:
            made = self._model.startswith("synthetic:")
            self._say.set_text(
                "Not on this machine yet: Run makes it first, or make it now."
                if made
                else "Not on this machine yet: Run downloads it first, or do it now."
            )
