"""The tab with every step of every method."""

from collections.abc import Iterable

from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.tabs.follow_end import FollowEnd
from app.tabs.kept_selection import KeptSelection
from app.tabs.steps_model import STEP_COLUMNS, StepsModel
from app.tabs.table_view import TableView
from app.widgets.throttle import Throttle
from mesp_core.runs.events import Step

REFRESH_EVERY_MS = 250  # numbers that change faster cannot be read


class StepsTab(QWidget):
    """A sortable table of steps that follows the newest one while the person looks at the end of it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, objectName="steps-tab")
        self.model = StepsModel(self)
        self.model.set_in_two_lines(True)
        self.view = TableView(self.model, "steps-table")
        self.view.setAccessibleName("Steps")
        self._methods: list[str] = []
        self._new: list[Step] = []
        self._refresh = Throttle(self._take_in, REFRESH_EVERY_MS, self)
        KeptSelection(self.view, self.model)
        FollowEnd(self.view.verticalScrollBar(), lambda: self.model.in_arrival_order)
        header = self.view.horizontalHeader()
        header.setSortIndicatorClearable(True)  # the third click brings back the order of arrival
        header.setSortIndicatorShown(True)
        self.view.sortByColumn(-1, header.sortIndicatorOrder())
        self.view.setSortingEnabled(True)
        header.setSectionsClickable(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.view)
        self._fit_columns()

    def begin(self, methods: Iterable[str]) -> None:
        """A new comparison: forget the steps of the last one."""
        self._methods, self._new = list(methods), []
        self._refresh.cancel()
        self.model.clear(self._methods)
        self._fit_columns()

    def add_step(self, step: Step) -> None:
        """Show a step, at the latest with the next refresh."""
        self._new.append(step)
        self._refresh.request()

    def changeEvent(self, event: QEvent) -> None:
        """Columns are as wide as the font needs."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "model"):
            self._fit_columns()

    def _take_in(self) -> None:
        new, self._new = self._new, []
        self.model.extend(new)

    def _fit_columns(self) -> None:
        width = self.view.fontMetrics().horizontalAdvance
        swatch = "mm"  # room for the colour before the name
        names = max([STEP_COLUMNS[0].widest, *self._methods], key=width) + swatch
        self.view.fit_columns([names, *(column.widest for column in STEP_COLUMNS[1:])])
