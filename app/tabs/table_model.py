"""What the tables of the tabs have in common: columns with a heading and a tooltip, and rows that can be copied."""

from collections.abc import Sequence
from typing import Any, Protocol

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt

Index = QModelIndex | QPersistentModelIndex
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
NOWHERE = QModelIndex()
GAP = "\u2002"  # before text that follows a number, which ends where the text's column begins


class TableColumn(Protocol):
    """`heading` has the unit, `tooltip` is one sentence of our own: never foreign text."""

    heading: str
    tooltip: str
    is_text: bool


class TableModel(QAbstractTableModel):
    """A flat table with the given columns. Subclasses say what the cells hold."""

    def __init__(self, columns: Sequence[TableColumn], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.columns = columns
        self._in_two_lines = False

    def columnCount(self, parent: Index = NOWHERE) -> int:
        """As many as there are columns; a cell has no children."""
        return 0 if parent.isValid() else len(self.columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Headings stand over their values: text to the left, numbers to the right."""
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self.columns):
            return None
        column = self.columns[section]
        if role == Qt.ItemDataRole.DisplayRole:
            heading = _two_lines(column.heading) if self._in_two_lines else column.heading
            return self.spaced(section, heading)
        if role == Qt.ItemDataRole.ToolTipRole:
            return column.tooltip
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return LEFT if column.is_text else RIGHT
        return None

    def set_in_two_lines(self, in_two_lines: bool) -> None:
        """Whether headings of several words take two lines, for little room."""
        if in_two_lines != self._in_two_lines:
            self._in_two_lines = in_two_lines
            self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(self.columns) - 1)

    def spaced(self, number: int, text: str) -> str:
        """A text as it is shown in a column, a little off the number before it."""
        if number == 0 or not self.columns[number].is_text:
            return text
        return "\n".join(GAP + line for line in text.split("\n"))

    def headings(self) -> list[str]:
        """One for each column, for the first line of what is copied."""
        return [column.heading for column in self.columns]

    def records(self, rows: Sequence[int]) -> list[Any]:
        """What these rows show now; each stays what it is when rows move or change."""
        raise NotImplementedError

    def exact_cells(self, record: Any) -> list[str]:
        """The cells of a record as they are copied: numbers with all their digits, nothing where there is no value."""
        raise NotImplementedError


def _two_lines(heading: str) -> str:
    """Broken at the space nearest to the middle."""
    spaces = [place for place, letter in enumerate(heading) if letter == " "]
    if not spaces:
        return heading
    place = min(spaces, key=lambda place: abs(2 * place - len(heading)))
    return f"{heading[:place]}\n{heading[place + 1 :]}"


def exact(value: Any) -> str:
    """A value with all its digits, on one line and without tabs, so that it stays one cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return " ".join(str(value).split())
