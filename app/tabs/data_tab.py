"""The tab with the samples as the model will see them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QItemSelectionModel, Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSplitter,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from app.tabs.error_view import ErrorView
from app.tabs.sample_view import SampleView
from app.tabs.samples_model import SAMPLE_COLUMNS, SampleRow, SamplesModel, sample_row
from app.tabs.table_view import TableView
from app.threads.background import Latest, Report, sentence
from app.widgets.elided_label import ElidedLabel
from app.widgets.wording import counted

if TYPE_CHECKING:  # the window shows before these are needed
    from mesp_core.data.preview import PreviewSample
    from mesp_core.runs.prepare import Prepared

PAGE = 100
# preview(tokens, data_file, model_dir, first, count, on_progress)
Load = Callable[..., "list[PreviewSample]"]


class DataTab(QWidget):
    """Samples to the left, the selected one to the right; or why there are none.

    Samples are read while somebody looks: data given to a hidden tab are read when it shows.
    """

    def __init__(self, load: Load | None = None, parent: QWidget | None = None) -> None:
        """`load` is mesp_core.data.preview.preview or stands in for it."""
        super().__init__(parent, objectName="data-tab")
        self._load = load or _preview
        self._prepared: Prepared | None = None
        self._first = 0  # of the page that is shown
        self._shown: tuple | None = None  # what it is a page of
        self._wanted: int | None = None  # the first sample of the page that is to come
        self._reading = Latest(self)
        self._reading.done.connect(self._show_page)
        self._reading.failed.connect(lambda error: self.show_error(sentence(error)))
        self._build()
        self._stack.setCurrentWidget(self.empty)

    def show_data(self, prepared: "Prepared") -> None:
        """Show the samples of what was prepared."""
        self._prepared = prepared
        self._reading.cancel()
        if self._key() == self._shown:  # only something else of the configuration has changed
            self._wanted = None
            self._tell_page(self._first)
            self._stack.setCurrentWidget(self.page)
            return
        self._wanted = 0
        self._show_busy(f"Reading {prepared.data_file.name}")
        if self.isVisible():
            self._read()

    def show_error(self, message: str) -> None:
        """Say why there are no samples."""
        self._forget()
        self.error.show_message(message)
        self._stack.setCurrentWidget(self.error)

    def show_busy(self, message: str) -> None:
        """Say what is being done before there are samples."""
        self._reading.cancel()
        self._wanted = None
        self._show_busy(message)

    def close_background(self) -> None:
        """End all threads."""
        self._reading.close()
        self.error.close_background()

    def showEvent(self, event: QShowEvent) -> None:
        """Now somebody looks."""
        super().showEvent(event)
        if self._wanted is not None and not self._reading.busy:
            self._read()

    def _read(self) -> None:
        prepared, first, load = self._prepared, self._wanted, self._load

        def work(report: Report) -> tuple[list[SampleRow], int]:
            tokens = prepared.tokens
            samples = load(tokens, prepared.data_file, prepared.source.path, first, PAGE, on_progress=report)
            longest = int((tokens.offsets[1:] - tokens.offsets[:-1]).max())
            return [sample_row(sample) for sample in samples], longest

        self._reading.start(work)

    def _show_page(self, outcome: tuple[list[SampleRow], int]) -> None:
        rows, longest = outcome
        self._first, self._wanted, self._shown = self._wanted, None, self._key()
        self._tell_facts(longest)
        self._tell_page(self._first)
        self.error.clear()
        self.model.show(rows)
        # Move the current cell, too, so that the arrow keys go on from there.
        select = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
        self.view.selectionModel().setCurrentIndex(self.model.index(0, 0), select)
        self.view.scrollToTop()
        self._stack.setCurrentWidget(self.page)

    def _show_sample(self) -> None:
        row = self.view.selectionModel().currentIndex().row()
        self.sample.show_sample(self.model.sample(row) if row >= 0 else None)

    def _go_to(self, first: int) -> None:
        self._wanted = first
        self._tell_page(first, "Reading ")
        self._read()

    def _key(self) -> tuple:
        prepared = self._prepared
        return prepared.tokens.path, prepared.data_file, prepared.source.path

    def _forget(self) -> None:
        self._reading.cancel()
        self._prepared = self._wanted = self._shown = None
        self.model.show([])
        self.sample.show_sample(None)

    def _tell_facts(self, longest: int) -> None:
        tokens, file = self._prepared.tokens, self._prepared.data_file
        facts = [
            tokens.kind,
            f"{counted(len(tokens), 'sample')} of {counted(tokens.rows, 'row')}",
            f"{tokens.skipped:,} skipped",
            f"{tokens.truncated:,} cut",
            f"at most {counted(longest, 'token')} a sample",
        ]
        self.file.show_text(file.name, str(file))
        self.facts.setText(" · ".join(facts))

    def _tell_page(self, first: int, before: str = "") -> None:
        count = len(self._prepared.tokens)
        what = f"{first + 1:,}–{min(first + PAGE, count):,} of {count:,}"
        self.where.setText(f"{before}{what}" if before else f"Samples {what}")
        last = (count - 1) // PAGE * PAGE
        targets = (0, max(0, first - PAGE), min(last, first + PAGE), last)
        for button, target in zip(self.buttons, targets, strict=True):
            if target == first and button.hasFocus():
                self.view.setFocus()  # or Qt would hand the focus on to whatever is next
            button.setEnabled(target != first)
            button.setProperty("first", target)

    def _show_busy(self, message: str) -> None:
        self.error.clear()
        self.busy_message.show_text(message)
        self._stack.setCurrentWidget(self.busy)

    def _build(self) -> None:
        self.empty = QLabel("No data yet. Choose a model and a data file to see its samples here.", objectName="data-empty")
        self.empty.setTextFormat(Qt.TextFormat.PlainText)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setWordWrap(True)
        self.error = ErrorView()
        self.busy = self._build_busy()
        self.page = self._build_page()
        self._stack = QStackedLayout(self)
        for widget in (self.empty, self.busy, self.error, self.page):
            self._stack.addWidget(widget)

    def _build_busy(self) -> QWidget:
        busy = QWidget(objectName="data-busy")
        self.busy_message = ElidedLabel("data-busy-message")
        bar = QProgressBar(objectName="data-busy-bar", textVisible=False)
        bar.setRange(0, 0)
        bar.setFixedWidth(40 * self.fontMetrics().averageCharWidth())
        layout = QVBoxLayout(busy)
        layout.addStretch()
        layout.addWidget(self.busy_message, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addWidget(bar)
        layout.setAlignment(bar, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch()
        return busy

    def _build_page(self) -> QWidget:
        self.file = ElidedLabel("data-file")
        self.facts = QLabel(objectName="data-facts")
        self.facts.setTextFormat(Qt.TextFormat.PlainText)
        self.sample = SampleView()
        header = QHBoxLayout()
        header.addWidget(self.file)
        header.addWidget(self.facts)
        header.addStretch()
        header.addWidget(self.sample.switch)

        self.model = SamplesModel(self)
        self.view = TableView(self.model, "samples-table")
        self.view.setAccessibleName("Samples")
        self.view.horizontalHeader().setStretchLastSection(True)
        self.view.selectionModel().currentRowChanged.connect(self._show_sample)
        self.view.fit_columns([column.widest for column in SAMPLE_COLUMNS])

        paging = QHBoxLayout()
        names = ("First", "Previous", "Next", "Last")
        self.buttons = [QPushButton(name, objectName=f"data-{name.lower()}") for name in names]
        for button in self.buttons:
            button.setAutoDefault(False)
            button.clicked.connect(lambda _=False, button=button: self._go_to(button.property("first")))
            paging.addWidget(button)
        self.where = QLabel(objectName="data-where")
        self.where.setTextFormat(Qt.TextFormat.PlainText)
        paging.addWidget(self.where)
        paging.addStretch()

        left = QWidget()
        left_layout = QVBoxLayout(left)
        left_layout.setContentsMargins(0, 0, 0, 0)
        left_layout.addWidget(self.view)
        left_layout.addLayout(paging)
        splitter = QSplitter(Qt.Orientation.Horizontal, objectName="data-splitter", childrenCollapsible=False)
        splitter.addWidget(left)
        splitter.addWidget(self.sample)
        splitter.setStretchFactor(0, 3)
        splitter.setStretchFactor(1, 2)

        page = QWidget(objectName="data-page")
        layout = QVBoxLayout(page)
        gap = layout.spacing()
        layout.setContentsMargins(gap, gap, gap, gap)
        layout.addLayout(header)
        layout.addWidget(splitter, 1)
        return page


def _preview(*arguments: Any, **options: Any) -> "list[PreviewSample]":
    from mesp_core.data.preview import preview

    return preview(*arguments, **options)
