"""The data: where it is, and how many samples it gives."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QProgressBar

from app.experiment.fields import SettingField
from app.experiment.place_box import PlaceBox
from app.threads.background import Latest, sentence
from app.widgets.path_dialog import path_dialog
from app.widgets.plain import PlainLabel, plain_tooltip
from app.widgets.wording import counted
from mesp_core.data.token_set import TokenSet
from mesp_core.data.wikitext2 import build
from mesp_core.files.cache import cache_dir
from mesp_core.files.user_path import user_path
from mesp_core.settings.run_config import SETTINGS

RECENT = 1  # group of the list
COUNTS = (
    "Samples can be learnt from. Skipped rows have nothing to learn within the sequence length; "
    "cut samples were longer than it."
)


class DataField(SettingField):
    """`build_wikitext2(file)` writes that data set; tests replace it. It runs in the background."""

    looked = Signal()  # `fetching` or `problem` is another
    again = Signal()  # chosen once more: read the file again

    def __init__(self, recent: Sequence[str] = (), build_wikitext2: Callable[[Path], Any] = build) -> None:
        self._wikitext2 = cache_dir() / "data" / "wikitext2.jsonl"
        self.box = PlaceBox(
            [("sample", "Sample (bundled)"), (str(self._wikitext2), "WikiText-2")],
            [(file, file) for file in recent],
        )
        super().__init__(SETTINGS["data"], self.box)
        self._build = build_wikitext2
        self.problem = ""
        self.add_open_button("Open a data file", self.open_file)
        self._status = PlainLabel("data_status")
        self._busy = QProgressBar(minimum=0, maximum=0)  # busy: nobody knows how long
        self._busy.setObjectName("data_busy")
        self._busy.setAccessibleName("Fetching WikiText-2")
        self._busy.setTextVisible(False)
        self._busy.hide()
        self.layout().addWidget(self._status)
        self.layout().addWidget(self._busy)
        self._fetch = Latest(self)
        self._fetch.done.connect(lambda _: self._note())
        self._fetch.failed.connect(lambda error: self._note(sentence(error)))
        self._fetch.busy_changed.connect(self._busy.setVisible)
        self.box.chosen.connect(self._choose)
        self.box.again.connect(self.look_again)

    @property
    def fetching(self) -> bool:
        """Whether the data is not there yet, but coming."""
        return self._fetch.busy

    def value(self) -> str:
        """What RunConfig.data is."""
        return self.box.value()

    def set_value(self, data: str) -> None:
        """Choose a data file; the one of before is read again."""
        self.box.set_value(data)

    def look_again(self) -> None:
        """The file may be another now."""
        self._look()
        self.again.emit()

    def set_status(self, message: str) -> None:
        """What is being done with the file."""
        self._say(message)

    def set_tokens(self, tokens: TokenSet | None) -> None:
        """How much there is to learn from; None: not known."""
        if tokens is None:
            self._say("")
            return
        self.box.remember(RECENT, self.value())
        parts = [counted(len(tokens), "sample")]
        parts += [f"{tokens.skipped:,} skipped"] if tokens.skipped else []
        parts += [f"{tokens.truncated:,} cut"] if tokens.truncated else []
        self._say(" · ".join(parts), COUNTS)

    def open_file(self) -> None:
        """Ask for a file; nothing waits for the answer."""
        bundled = self.value() in ("sample", str(self._wikitext2))
        folder = user_path("~") if bundled else user_path(self.value()).parent
        mode = QFileDialog.FileMode.ExistingFile
        dialog = path_dialog(self, "Open a data file", mode, self.set_value, str(folder), "open_data_dialog")
        dialog.setNameFilters(["Data (*.jsonl)", "All files (*)"])
        dialog.open()

    def close_background(self) -> None:
        """End the thread."""
        self._fetch.close()

    def _choose(self) -> None:
        self._look()
        self.changed.emit()

    def _look(self) -> None:
        """Fetch what is not there and can be."""
        self._fetch.cancel()
        file = self._wikitext2
        if self.value() == str(file) and not os.path.isfile(file):
            self._fetch.start(lambda _: self._build(file))
        self._note()

    def _note(self, problem: str = "") -> None:
        self.problem = problem
        self.looked.emit()

    def _say(self, text: str, tooltip: str = "") -> None:
        self._status.set_text(text)
        self._status.setToolTip(plain_tooltip(tooltip))
