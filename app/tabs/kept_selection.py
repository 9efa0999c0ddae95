"""The selected rows stay selected when a table sorts itself."""

from itertools import pairwise

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QObject

from app.tabs.steps_model import StepsModel
from app.tabs.table_view import TableView

MAX_PARTS = 1000  # separate pieces a selection may have; from there on each new row would cost Qt more than 2 ms


class KeptSelection(QObject):
    """Takes the selection off before the rows move and puts it back after, row by row.

    Left to itself Qt keeps an index for every selected cell, which takes seconds for 50,000 rows. A selection that sorting
    scatters over more than `MAX_PARTS` pieces is let go.
    """

    def __init__(self, view: TableView, model: StepsModel) -> None:
        super().__init__(view)
        self._view, self._model = view, model
        self._items: list[int] = []
        model.about_to_sort.connect(self._take)
        model.was_sorted.connect(self._give_back)

    def _take(self) -> None:
        self._items = self._model.items(self._view.selected_rows())
        if self._items:
            self._view.selectionModel().clearSelection()

    def _give_back(self) -> None:
        if not self._items:
            return
        rows = sorted(self._model.rows(self._items))
        self._items = []
        ends = [row for row, following in pairwise(rows) if following != row + 1] + rows[-1:]
        if len(ends) > MAX_PARTS:
            return
        starts = rows[:1] + [following for row, following in pairwise(rows) if following != row + 1]
        last_column, selection = self._model.columnCount() - 1, QItemSelection()
        for start, end in zip(starts, ends, strict=True):
            selection.select(self._model.index(start, 0), self._model.index(end, last_column))
        self._view.selectionModel().select(selection, QItemSelectionModel.SelectionFlag.Select)
