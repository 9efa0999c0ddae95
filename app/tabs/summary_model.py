"""The comparison table: one row a method, and the paper's own figures beneath."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication, QPalette

from app.tabs.table_model import LEFT, NOWHERE, RIGHT, Index, TableModel, exact
from app.widgets.theme import method_color
from mesp_core.methods.registry import METHODS
from mesp_core.runs.results import COLUMNS, Column

_PAPER_ALPHA = 110  # of 255, of the colour before a method that the paper measured


@dataclass(frozen=True)
class SummaryColumn:
    """A column of the comparison table as `TableModel` wants it."""

    column: Column

    @property
    def heading(self) -> str:
        """With its unit."""
        return self.column.heading

    @property
    def tooltip(self) -> str:
        """What the column means, in one sentence."""
        return self.column.tooltip

    @property
    def is_text(self) -> bool:
        """Whether it holds names rather than numbers."""
        return self.column.key == "method"


class SummaryModel(TableModel):
    """Rows of `Results.rows()` and `Results.paper_rows()`. The best value of a column is bold, if there is a contest."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(list(map(SummaryColumn, COLUMNS)), parent)
        self._rows: list[dict[str, Any]] = []
        self._ours = 0  # how many of the rows are our own
        self._best: set[tuple[int, int]] = set()

    def show(self, rows: Sequence[dict[str, Any]], paper: Sequence[dict[str, Any]]) -> None:
        """Show these rows, in place of the old ones if they are of the same methods."""
        new = [*rows, *paper]
        same = [row["method"] for row in new] == [row["method"] for row in self._rows]
        if not same:
            self.beginResetModel()
        self._rows, self._ours = new, len(rows)
        self._best = {(row, number) for number, column in enumerate(COLUMNS) for row in _best_rows(rows, column)}
        if not same:
            self.endResetModel()
        elif new:
            self.dataChanged.emit(self.index(0, 0), self.index(len(new) - 1, len(COLUMNS) - 1))

    def rowCount(self, parent: Index = NOWHERE) -> int:
        """Our rows and the paper's."""
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Text, the method's colour, bold for the best, dimmed for the paper's."""
        row, number = index.row(), index.column()
        column, values = COLUMNS[number], self._rows[row]
        ours = row < self._ours
        if role == Qt.ItemDataRole.DisplayRole:
            return column.text(values.get(column.key))
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return LEFT if number == 0 else RIGHT
        if role == Qt.ItemDataRole.DecorationRole and number == 0:
            return self._color(row)
        if role == Qt.ItemDataRole.FontRole and (row, number) in self._best:
            font = QFont()
            font.setBold(True)
            return font
        if role == Qt.ItemDataRole.ForegroundRole and not ours:
            return QGuiApplication.palette().color(QPalette.ColorRole.PlaceholderText)
        if role == Qt.ItemDataRole.ToolTipRole:
            if not ours:
                return values["source"]
            return _description(values["method"]) if number == 0 else None
        return None

    def records(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """See TableModel."""
        return [self._rows[row] for row in rows]

    def exact_cells(self, record: dict[str, Any]) -> list[str]:
        """See TableModel."""
        return [exact(record.get(column.key)) for column in COLUMNS]

    def _color(self, row: int) -> QColor:
        values = self._rows[row]
        color = method_color(values.get("of", values["method"]), [own["method"] for own in self._rows[: self._ours]])
        if row >= self._ours:
            color.setAlpha(_PAPER_ALPHA)
        return color


def _description(method: str) -> str | None:
    """Of results that another version may have written: a method that is not known here has none."""
    record = METHODS.get(method.partition(":")[0])
    return None if record is None else record.description


def _best_rows(rows: Sequence[dict[str, Any]], column: Column) -> list[int]:
    """The rows with the best value of a column; none where fewer than two methods have a value."""
    if column.lower_is_better is None:
        return []
    values = {row: own[column.key] for row, own in enumerate(rows) if own.get(column.key) is not None}
    values = {row: value for row, value in values.items() if not math.isnan(value)}
    if len(values) < 2:
        return []
    best = min(values.values()) if column.lower_is_better else max(values.values())
    # What reads the same is a tie.
    return [row for row, value in values.items() if column.text(value) == column.text(best)]
