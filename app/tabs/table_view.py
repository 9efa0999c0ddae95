"""A table of rows: fixed row height, rows selected as a whole, copied as TSV."""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QEvent, QItemSelectionModel, Qt, QTimer
from PySide6.QtGui import QAction, QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from app.tabs.table_model import TableModel

ROWS_AT_ONCE = 500  # formatted before the window gets its turn again; about 5 ms


class TableView(QTableView):
    """Shows a `TableModel`. ⌘C, or Copy in the context menu, copies the selected rows, all of them if none is."""

    def __init__(self, model: TableModel, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName=name)
        self.setModel(model)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)  # Tab leaves the table
        self.setCornerButtonEnabled(False)
        self.horizontalHeader().setSectionsClickable(False)
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setMinimumSectionSize(1)  # the style's may be more than the font needs
        # To draw a heading as selected Qt would ask for every row of the selection: the headers get one that is empty.
        self.horizontalHeader().setSelectionModel(QItemSelectionModel(model, self))
        self.verticalHeader().setSelectionModel(QItemSelectionModel(model, self))
        self._to_copy: list[Any] = []
        self._copied: list[str] = []
        self._next_slice = QTimer(self, singleShot=True, interval=0)
        self._next_slice.timeout.connect(self._copy_slice)
        self.copy_action = QAction("Copy as TSV", self, objectName=f"{name}-copy")
        self.copy_action.triggered.connect(self.copy)
        self.addAction(self.copy_action)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self._fit_to_font()

    def fit_columns(self, widest: Sequence[str]) -> None:
        """Give each column the width of its heading or of a long value, not of its rows: there may be 100,000."""
        metrics, header = self.fontMetrics(), self.horizontalHeader()
        padding = 3 * metrics.averageCharWidth()
        for number, value in enumerate(widest):
            self.setColumnWidth(number, max(metrics.horizontalAdvance(value) + padding, header.sectionSizeHint(number)))

    def selected_rows(self) -> list[int]:
        """The selected rows from top to bottom."""
        rows = set()
        for part in self.selectionModel().selection():
            rows.update(range(part.top(), part.bottom() + 1))
        return sorted(rows)

    def copy(self) -> None:
        """Put the selected rows, or all, on the clipboard as TSV with headings; many take some turns of the event loop."""
        rows = self.selected_rows() or range(self.model().rowCount())
        # Records, because rows may move before the last slice has its turn.
        self._to_copy = self.model().records(rows)
        self._copied = ["\t".join(self.model().headings()) + "\n"]
        self._copy_slice()

    def _copy_slice(self) -> None:
        part, self._to_copy = self._to_copy[:ROWS_AT_ONCE], self._to_copy[ROWS_AT_ONCE:]
        self._copied.append("".join("\t".join(self.model().exact_cells(record)) + "\n" for record in part))
        if self._to_copy:
            self._next_slice.start()
        else:
            QGuiApplication.clipboard().setText("".join(self._copied))
            self._copied = []

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Copy rows where Qt would copy one cell. (Not a shortcut: that would be ambiguous beside an Edit menu's.)"""
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        """Rows are as high as the font needs."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._fit_to_font()

    def _fit_to_font(self) -> None:
        height = self.fontMetrics().height()
        self.verticalHeader().setDefaultSectionSize(round(1.4 * height))
        swatch = round(0.7 * height)
        self.setIconSize(self.iconSize().scaled(swatch, swatch, Qt.AspectRatioMode.IgnoreAspectRatio))
