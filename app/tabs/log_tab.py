"""The tab with what the workers and the app had to say."""

import time

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QVBoxLayout, QWidget

from app.tabs.follow_end import FollowEnd
from app.widgets.theme import level_color
from mesp_core.runs.events import Log

MAX_LINES = 10_000
MAX_CHARACTERS = 5000  # of a line; a longer one would take long to lay out
_COLORS = {"warning": "warning", "error": "bad"}  # level -> colour; others have the colour of text
_STATES = {"info": 0, "warning": 1, "error": 2}  # level -> state of its lines, from which they get a new colour
_APP = "app"  # who speaks when no method does


class LogTab(QWidget):
    """Lines of time, method, level and message as plain text, the newest at the end."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName="log-tab")
        self.text = QPlainTextEdit(self, objectName="log-text", readOnly=True, undoRedoEnabled=False)
        self.text.setAccessibleName("Log")
        self.text.setMaximumBlockCount(MAX_LINES)
        self.text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText("Nothing was logged yet.")
        FollowEnd(self.text.verticalScrollBar())
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text)

    def add(self, log: Log) -> None:
        """A worker's message."""
        self._write(log.method, log.level, log.message)

    def say(self, text: str, level: str = "info") -> None:
        """The app's own message; level is info, warning or error."""
        self._write(_APP, level, text)

    def changeEvent(self, event: QEvent) -> None:
        """Other colours on another ground."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "text"):
            self._color_anew()

    def _write(self, who: str, level: str, message: str) -> None:
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        end = cursor.position()
        selected = self.text.textCursor()
        cursor.beginEditBlock()
        if not self.text.document().isEmpty():
            cursor.insertBlock()
        for number, line in enumerate(message.splitlines() or [""]):
            if number:
                cursor.insertBlock()
            start = f"{time.strftime('%H:%M:%S')}  {who}  {level}:  " if not number else "    "
            shown = line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + " …"
            cursor.insertText(start + shown, _format(level))
            cursor.block().setUserState(_STATES.get(level, 0))
        cursor.endEditBlock()
        if selected.hasSelection() and selected.selectionEnd() > end:  # it reached the end and has grown with the text
            kept = QTextCursor(self.text.document())
            kept.setPosition(selected.selectionStart())
            kept.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
            self.text.setTextCursor(kept)

    def _color_anew(self) -> None:
        levels = {state: level for level, state in _STATES.items() if level in _COLORS}
        block = self.text.document().firstBlock()
        while block.isValid():
            if block.userState() in levels:
                cursor = QTextCursor(block)
                cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
                cursor.setCharFormat(_format(levels[block.userState()]))
            block = block.next()


def _format(level: str) -> QTextCharFormat:
    form = QTextCharFormat()
    if level in _COLORS:
        form.setForeground(QColor(level_color(_COLORS[level])))
    return form
