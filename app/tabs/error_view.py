"""Why there are no samples: the message, and the line of the file that it speaks of."""

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFontDatabase, QPalette, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QStyle, QWidget

from app.tabs.raw_line import place_of, raw_line
from app.threads.background import Latest


class ErrorView(QWidget):
    """An icon and text that can be selected and copied; long paths break anywhere."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName="data-error")
        self._line = 0
        self._reading = Latest(self)
        self._reading.done.connect(self._add_line)
        self._icon = QLabel()
        self._icon.setAccessibleName("Error")
        self.text = QPlainTextEdit(objectName="data-error-text", readOnly=True, undoRedoEnabled=False)
        self.text.setAccessibleName("What is wrong with the data")
        self.text.setTabChangesFocus(True)
        self.text.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.text.viewport().setAutoFillBackground(False)
        layout = QHBoxLayout(self)
        layout.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(self.text, 1)
        self._draw_icon()

    def show_message(self, message: str) -> None:
        """Show a message; the line of the file follows when it was read."""
        self._reading.cancel()
        self.text.clear()
        self._write(message, QTextCharFormat())
        if place := place_of(message):
            file, self._line = place
            self._reading.start(lambda report: raw_line(file, place[1], report))

    def clear(self) -> None:
        """The message does not hold any more."""
        self._reading.cancel()
        self.text.clear()

    def close_background(self) -> None:
        """End the reading of a line."""
        self._reading.close()

    def changeEvent(self, event: QEvent) -> None:
        """The icon is as large as the text asks for."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange) and hasattr(self, "text"):
            self._draw_icon()

    def _add_line(self, line: str | None) -> None:
        if line is None:
            return
        heading, raw = QTextCharFormat(), QTextCharFormat()
        heading.setForeground(self.palette().color(QPalette.ColorRole.PlaceholderText))
        raw.setFontFamilies([QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family()])
        self._write(f"\n\nLine {self._line:,} of the file:\n", heading)
        self._write(line or "(empty)", raw)

    def _write(self, text: str, form: QTextCharFormat) -> None:
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text, form)

    def _draw_icon(self) -> None:
        side = 2 * self.fontMetrics().height()
        icon = self.style().standardIcon(QStyle.StandardPixmap.SP_MessageBoxWarning)
        self._icon.setPixmap(icon.pixmap(side, side))
