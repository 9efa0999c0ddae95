"""The tab with the comparison table."""

from typing import Any

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QStackedLayout, QWidget

from app.tabs.summary_model import SummaryModel
from app.tabs.table_view import TableView


class SummaryTab(QWidget):
    """What each method cost, side by side, as far as the run has come."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName="summary-tab")
        self.model = SummaryModel(self)
        self.view = TableView(self.model, "summary-table")
        self.view.setAccessibleName("Comparison of the methods")
        self.empty = QLabel("Nothing to compare yet. Press Run: each method gets a row here.", objectName="summary-empty")
        self.empty.setTextFormat(Qt.TextFormat.PlainText)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setWordWrap(True)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self.empty)
        self._stack.addWidget(self.view)

    def show_rows(self, rows: list[dict[str, Any]], paper: list[dict[str, Any]]) -> None:
        """Show rows as `Results.rows()` and, beneath them, `Results.paper_rows()` give them."""
        self.model.show(rows, paper if rows else [])
        self._stack.setCurrentWidget(self.view if rows else self.empty)
        self._fit_columns()

    def clear(self) -> None:
        """Back to the beginning."""
        self.show_rows([], [])

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Headings in one line where there is room for them."""
        super().resizeEvent(event)
        self._fit_columns()

    def changeEvent(self, event: QEvent) -> None:
        """Columns are as wide as the font needs."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "view"):
            self._fit_columns()

    def _fit_columns(self) -> None:
        header, room = self.view.horizontalHeader(), self.view.viewport().width()
        for in_two_lines in (False, True):
            self.model.set_in_two_lines(in_two_lines)
            self.view.resizeColumnsToContents()
            if header.length() <= room:
                break
        spare = min((room - header.length()) // header.count(), 3 * self.view.fontMetrics().averageCharWidth())
        for number in range(header.count()):
            header.resizeSection(number, header.sectionSize(number) + max(0, spare))
