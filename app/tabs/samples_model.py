"""A page of samples as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt

from app.tabs.table_model import LEFT, NOWHERE, RIGHT, Index, TableModel, exact

if TYPE_CHECKING:  # it brings NumPy, which is not needed before there is data
    from mesp_core.data.preview import PreviewSample

BEGINNING = 200  # characters of a sample's text that its row has


@dataclass(frozen=True)
class SampleColumn:
    """A column of the table of samples; it gets its width from `widest`, a long value."""

    heading: str
    tooltip: str
    widest: str
    is_text: bool = False


SAMPLE_COLUMNS = (
    SampleColumn("sample", "The number of the sample, from 1.", "100,000"),
    SampleColumn("line", "The line of the data file that the sample is from.", "100,000"),
    SampleColumn("roles", "Who speaks in it, in order.", "user → assistant", True),
    SampleColumn("tokens", "How many tokens the sample has.", "10,000"),
    SampleColumn("trained tokens", "How many of them carry loss: those the model learns to predict.", "10,000"),
    SampleColumn("text", "How the sample begins.", "", True),
)


@dataclass(frozen=True)
class SampleRow:
    """A sample and what its row shows."""

    sample: "PreviewSample"
    cells: tuple[str, ...]


def sample_row(sample: "PreviewSample") -> SampleRow:
    """The row of a sample; takes a while for long ones, so it is made in the background."""
    beginning = _beginning([piece.text for piece in sample.pieces])
    roles = _shortened(sample.roles)
    numbers = [f"{len(sample.ids):,}", f"{sample.learnt.count(True):,}"]
    return SampleRow(sample, (f"{sample.index + 1:,}", f"{sample.line:,}", roles, *numbers, beginning))


class SamplesModel(TableModel):
    """The samples of one page."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(SAMPLE_COLUMNS, parent)
        self._rows: list[SampleRow] = []

    def show(self, rows: list[SampleRow]) -> None:
        """Show these samples."""
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def sample(self, row: int) -> "PreviewSample":
        """What the row stands for."""
        return self._rows[row].sample

    def rowCount(self, parent: Index = NOWHERE) -> int:
        """One for each sample of the page."""
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Text and alignment."""
        if role == Qt.ItemDataRole.DisplayRole:
            return self.spaced(index.column(), self._rows[index.row()].cells[index.column()])
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return LEFT if SAMPLE_COLUMNS[index.column()].is_text else RIGHT
        return None

    def records(self, rows: Sequence[int]) -> list["PreviewSample"]:
        """See TableModel."""
        return [self.sample(row) for row in rows]

    def exact_cells(self, sample: "PreviewSample") -> list[str]:
        """See TableModel; the whole text, on one line."""
        text = "".join(piece.text for piece in sample.pieces)
        values = (sample.index + 1, sample.line, " → ".join(sample.roles), len(sample.ids), sample.learnt.count(True), text)
        return [exact(value) for value in values]


def _beginning(texts: list[str]) -> str:
    """The first characters of all texts together, on one line."""
    lengths = accumulate(len(text) for text in texts)
    enough = next((number for number, length in enumerate(lengths, 1) if length > 2 * BEGINNING), len(texts))
    text = "".join(text[: 2 * BEGINNING] for text in texts[:enough])
    return " ".join(text[: 2 * BEGINNING].split())[:BEGINNING]


def _shortened(roles: Sequence[str], most: int = 4) -> str:
    """Roles in order; of a long talk only the first ones."""
    shown = " → ".join(roles[:most])
    return (f"{shown} → … ({len(roles)})" if len(roles) > most else shown) or "–"
