"""Every step of every method as a table that sorts itself."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal

from app.tabs.row_order import RowOrder
from app.tabs.table_model import LEFT, NOWHERE, RIGHT, Index, TableModel, exact
from app.widgets.theme import method_color
from mesp_core.machine.device import THERMAL_STATES
from mesp_core.runs.events import Step

FEW = 200  # rows that are put in their places one by one, in 50 µs each; more are sorted in together


@dataclass(frozen=True)
class StepColumn:
    """A field of `Step` with its heading, what the heading means, and how a value is written.

    `widest` is a long value, from which the column gets its width: looking at 100,000 rows for it would take too long.
    """

    key: str
    heading: str
    tooltip: str
    text: Callable[[Any], str]
    widest: str
    is_text: bool = False


def _time_of_day(timestamp: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(timestamp))


STEP_COLUMNS = (
    StepColumn("method", "method", "The training method; sorted in the order they came.", str, "mesp-store-h", True),
    StepColumn("step", "step", "The number of the optimizer step, from 1.", str, "100000"),
    StepColumn("loss", "loss", "The mean cross-entropy over the trained tokens, in nats.", "{:.4f}".format, "12.3456"),
    StepColumn("perplexity", "perplexity", "e to the power of the loss.", "{:.4g}".format, "1.234e+05"),
    StepColumn("step_time_s", "s/step", "How long the step took, in seconds.", "{:.3f}".format, "123.456"),
    StepColumn("tokens_per_s", "tokens/s", "Input positions computed in a second.", "{:.0f}".format, "12345"),
    StepColumn(
        "learning_rate", "learning rate", "The optimizer's step size, after warm-up and decay.", "{:.3g}".format, "1.2e-05"
    ),
    StepColumn(
        "gradient_norm", "gradient norm", "The norm of all adapters' gradient together.", "{:.4g}".format, "0.0001234"
    ),
    StepColumn(
        "allocator_peak_mb",
        "allocator peak, MB",
        "The most memory MLX's allocator held at once during the step, in MB of 1024·1024 bytes.",
        "{:.1f}".format,
        "12345.6",
    ),
    StepColumn(
        "footprint_peak_mb",
        "footprint peak, MB",
        "The most memory the operating system counted for the worker process during the step, in MB of 1024·1024 bytes.",
        "{:.1f}".format,
        "12345.6",
    ),
    StepColumn(
        "thermal_state",
        "thermal state",
        "How hot the system said the machine was: nominal, fair, serious or critical.",
        str,
        "unknown",
        True,
    ),
    StepColumn("battery_percent", "battery, %", "How full the battery was after the step.", "{:.0f}".format, "100"),
    StepColumn("timestamp", "time of day", "When the step ended, on this machine's clock.", _time_of_day, "00:00:00"),
)
_NO_VALUE = "–"


class StepsModel(TableModel):
    """The steps in the order they came, or sorted by a column; new ones come in at their place.

    It sorts itself instead of through a proxy, whose comparisons in Python would take seconds for 100,000 rows.
    """

    about_to_sort = Signal()  # before and after the layout changes, outside of Qt's own keeping of indexes
    was_sorted = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(STEP_COLUMNS, parent)
        self._methods: list[str] = []
        self._steps: list[Step] = []  # as they came
        self._order = RowOrder()
        self._column, self._descending = -1, False
        self._cell = {
            Qt.ItemDataRole.DisplayRole: self._text,
            Qt.ItemDataRole.TextAlignmentRole: lambda row, column: LEFT if STEP_COLUMNS[column].is_text else RIGHT,
            Qt.ItemDataRole.DecorationRole: self._swatch,
        }

    @property
    def in_arrival_order(self) -> bool:
        """Whether no column is sorted by."""
        return self._column < 0

    def clear(self, methods: Iterable[str]) -> None:
        """Forget all steps; those of `methods` will follow."""
        self.beginResetModel()
        self._methods, self._steps, self._order = list(methods), [], RowOrder()
        self._order.arrange([], self._descending)
        self.endResetModel()

    def step(self, row: int) -> Step:
        """What the row shows."""
        return self._steps[self._order.items[row]]

    def items(self, rows: Iterable[int]) -> list[int]:
        """The numbers, from 0 in order of arrival, of the steps in these rows."""
        return [self._order.items[row] for row in rows]

    def rows(self, items: Iterable[int]) -> list[int]:
        """The inverse of `items`."""
        return self._order.rows(items)

    def extend(self, steps: Sequence[Step]) -> None:
        """Take in new steps, each at its place."""
        for step in steps:
            if step.method not in self._methods:
                self._methods.append(step.method)
        if not self.in_arrival_order and len(steps) <= FEW:
            for step in steps:
                self._insert(step)
        elif steps:
            count = len(self._steps)
            self.beginInsertRows(NOWHERE, count, count + len(steps) - 1)
            self._steps.extend(steps)
            self._order.append(len(steps))
            self.endInsertRows()
            if not self.in_arrival_order:
                self.sort(self._column, self._sort_order())

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column's values, those without one last; column -1 is the order in which the steps came."""
        self.about_to_sort.emit()
        self.layoutAboutToBeChanged.emit()
        kept = self.persistentIndexList()
        items = self.items([index.row() for index in kept])
        self._column, self._descending = column, order == Qt.SortOrder.DescendingOrder and column >= 0
        self._order.arrange(self._keys(), self._descending)
        if kept:
            moved = [self.index(row, index.column()) for row, index in zip(self.rows(items), kept, strict=True)]
            self.changePersistentIndexList(kept, moved)
        self.layoutChanged.emit()
        self.was_sorted.emit()

    def rowCount(self, parent: Index = NOWHERE) -> int:
        """One for each step."""
        return 0 if parent.isValid() else len(self._steps)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """Text, alignment, and the method's colour before its name."""
        cell = self._cell.get(role)
        return cell(index.row(), index.column()) if cell is not None else None

    def records(self, rows: Sequence[int]) -> list[Step]:
        """See TableModel."""
        return [self.step(row) for row in rows]

    def exact_cells(self, step: Step) -> list[str]:
        """See TableModel; the time with its date and time zone."""
        cells = [exact(getattr(step, column.key)) for column in STEP_COLUMNS[:-1]]
        when = "" if step.timestamp is None else datetime.fromtimestamp(step.timestamp).astimezone().isoformat()
        return [*cells, when]

    def _text(self, row: int, column: int) -> str:
        value = getattr(self.step(row), STEP_COLUMNS[column].key)
        return self.spaced(column, _NO_VALUE if value is None else STEP_COLUMNS[column].text(value))

    def _swatch(self, row: int, column: int) -> Any:
        return method_color(self.step(row).method, self._methods) if column == 0 else None

    def _insert(self, step: Step) -> None:
        key = self._key_of(self._column)(step)
        row = self._order.place(key)
        self.beginInsertRows(NOWHERE, row, row)
        self._steps.append(step)
        self._order.insert(key)
        self.endInsertRows()

    def _keys(self) -> Sequence[float | None]:
        if self.in_arrival_order:
            return range(len(self._steps))
        return list(map(self._key_of(self._column), self._steps))

    def _key_of(self, column: int) -> Callable[[Step], float | None]:
        key = STEP_COLUMNS[column].key
        value = attrgetter(key)
        if not STEP_COLUMNS[column].is_text:
            return value
        ranks = {text: rank for rank, text in enumerate(self._methods if key == "method" else THERMAL_STATES)}
        return lambda step: ranks.get(value(step))

    def _sort_order(self) -> Qt.SortOrder:
        return Qt.SortOrder.DescendingOrder if self._descending else Qt.SortOrder.AscendingOrder
