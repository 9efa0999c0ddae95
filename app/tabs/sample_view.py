"""One sample as the model will see it, the tokens that carry loss highlighted."""

import re
from itertools import groupby
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette, QPixmap, QTextCharFormat, QTextCursor, QTextOption
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QRadioButton, QSizePolicy, QVBoxLayout, QWidget

from app.widgets.theme import mixed

if TYPE_CHECKING:
    from mesp_core.data.preview import PreviewSample

# Qt lays out a line as a whole, and makes a block of each: what takes it more than about 20 ms is cut.
MAX_CHARACTERS = 60_000
MAX_LINES = 5000
_UNBROKEN = re.compile(r"\S{1000}")  # in which Qt would look for a place to break for seconds
_TINT = 0.35  # how much of the highlight's colour


class SampleView(QWidget):
    """A sample's text or token ids; a legend says what the highlight means.

    `switch` chooses which of both; whoever uses the view puts it where there is room.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName="sample-view")
        self._sample: PreviewSample | None = None
        self.as_text = QRadioButton("Text", objectName="sample-as-text", checked=True)
        self.as_ids = QRadioButton("Token ids", objectName="sample-as-ids")
        self.as_text.toggled.connect(self._fill)
        self.text = QPlainTextEdit(objectName="sample-text", readOnly=True, undoRedoEnabled=False)
        self.text.setAccessibleName("The selected sample")
        self.text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.text.setTabChangesFocus(True)
        self._swatch = QLabel()
        self.legend = QLabel("carries loss: the model learns to predict it", objectName="sample-legend")
        self.legend.setTextFormat(Qt.TextFormat.PlainText)
        self.legend.setToolTip(self.legend.text())
        self.legend.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)  # may be cut off
        self.switch = QWidget(objectName="sample-switch")
        switch = QHBoxLayout(self.switch)
        switch.setContentsMargins(0, 0, 0, 0)
        switch.addWidget(self.as_text)
        switch.addWidget(self.as_ids)
        bottom = QHBoxLayout()
        bottom.addWidget(self._swatch)
        bottom.addWidget(self.legend, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text)
        layout.addLayout(bottom)
        self._draw_swatch()

    def show_sample(self, sample: "PreviewSample | None") -> None:
        """Show a sample from its beginning; None: nothing."""
        self._sample = sample
        self._fill()

    def changeEvent(self, event: QEvent) -> None:
        """Another tint on another ground."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange) and hasattr(self, "legend"):
            self._draw_swatch()
            self._fill()

    def _fill(self) -> None:
        plain, learnt = QTextCharFormat(), QTextCharFormat()
        learnt.setBackground(self._tint())
        runs = self._runs()
        left = _shown("".join(run for run, _ in runs))
        wrap = QTextOption.WrapMode
        unbroken = any(_UNBROKEN.search(run) for run, _ in runs)
        self.text.clear()  # first, or the old text would be laid out in the new way
        self.text.setWordWrapMode(wrap.WrapAnywhere if unbroken else wrap.WrapAtWordBoundaryOrAnywhere)
        cursor = QTextCursor(self.text.document())
        cursor.beginEditBlock()
        for run, is_learnt in runs:
            cursor.insertText(run[:left], learnt if is_learnt else plain)
            left -= len(run)
            if left < 0:
                cursor.insertText("\n… (only the beginning is shown)", plain)
                break
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _runs(self) -> list[tuple[str, bool]]:
        sample = self._sample
        if sample is None:
            return []
        if self.as_text.isChecked():
            return [(piece.text, piece.learnt) for piece in sample.pieces]
        runs = []
        for is_learnt, pairs in groupby(zip(sample.ids, sample.learnt, strict=True), key=lambda pair: pair[1]):
            runs += [(" ".join(str(token) for token, _ in pairs), is_learnt), (" ", False)]
        return runs[:-1]

    def _tint(self) -> QColor:
        # The application's: the view's own comes only after this widget was told of a change.
        palette = QGuiApplication.palette()
        return mixed(palette.color(QPalette.ColorRole.Highlight), palette.color(QPalette.ColorRole.Base), _TINT)

    def _draw_swatch(self) -> None:
        side = round(0.8 * self.fontMetrics().height())
        square = QPixmap(round(1.6 * side), side)
        square.fill(self._tint())
        self._swatch.setPixmap(square)


def _shown(text: str) -> int:
    """How many characters of a text are shown."""
    lines = text[:MAX_CHARACTERS].split("\n", MAX_LINES)
    return min(MAX_CHARACTERS, sum(map(len, lines[:MAX_LINES])) + MAX_LINES - 1)
