"""Where a model or data is: picked from a list, or typed."""

from collections.abc import Iterable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QComboBox

from app.experiment.fields import keep_quiet
from app.widgets.elided_line_edit import ElidedLineEdit
from app.widgets.plain import plain_tooltip

Place = tuple[str, str]  # value, what the list calls it


class PlaceBox(QComboBox):
    """An editable list in groups. A typed text counts once Enter is pressed or the focus goes on.

    Whoever chooses the value of before, by whatever means, wants it looked at again: the files may be others now.

    The value is the core's word for the place; the list may call it otherwise ("tiny" is "Tiny (bundled)").
    """

    chosen = Signal()  # another value than before
    again = Signal()  # the value of before was chosen

    def __init__(self, *groups: Iterable[Place]) -> None:
        super().__init__(editable=True, insertPolicy=QComboBox.InsertPolicy.NoInsert)
        self.setLineEdit(ElidedLineEdit())
        self.setCompleter(None)  # it would put a place of before in the place of a typed one
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(8)
        self.view().setTextElideMode(Qt.TextElideMode.ElideMiddle)
        keep_quiet(self)
        self._groups: list[list[Place]] = [list(group) for group in groups]
        self._fill_later = QTimer(self, singleShot=True, interval=0)
        self._fill_later.timeout.connect(self._fill)
        self._fill()
        self._last = self._groups[0][0][0]
        self._show(self._last)
        self.activated.connect(lambda _: self._choose())
        self.lineEdit().editingFinished.connect(self.commit)
        self.lineEdit().returnPressed.connect(self._enter)

    def value(self) -> str:
        """The place of now, also when its text was not committed yet."""
        text = self.currentText().strip()
        return next((value for value, words in self._places() if words == text), text)

    def set_value(self, value: str) -> None:
        """Choose a place."""
        self._show(value)
        self._choose()

    def commit(self) -> None:
        """Let what stands there count."""
        if self.value() != self._last:
            self._choose()

    def set_group(self, index: int, places: Iterable[Place]) -> None:
        """What one group offers from now on; the value stays."""
        self._groups[index] = list(places)
        if not self.view().isVisible():  # an open list must not change under the pointer
            self._fill()

    def remember(self, index: int, value: str) -> None:
        """Offer this value, too, first in its group."""
        if value not in (known for known, _ in self._places()):
            self.set_group(index, [(value, value), *self._groups[index]])

    def hidePopup(self) -> None:
        """Then what came meanwhile can be shown, once the choice has been told."""
        super().hidePopup()
        self._fill_later.start()

    def _places(self) -> Iterable[Place]:
        return (place for group in self._groups for place in group)

    def _choose(self) -> None:
        value, last = self.value(), self._last
        self._show(value)
        self._last = value
        (self.again if value == last else self.chosen).emit()

    def _enter(self) -> None:
        if self.value() == self._last:  # another one counts as the same key ends the editing
            self._choose()

    def _show(self, value: str) -> None:
        words = next((words for known, words in self._places() if known == value), value)
        index = self.findText(words)
        if (self.currentIndex(), self.currentText()) != (index, words):
            self.setCurrentIndex(index)
            self.setEditText(words)
        self.lineEdit().setToolTip(plain_tooltip(value))

    def _fill(self) -> None:
        """The list anew; of a place that several groups have, the first counts."""
        text, seen = self.currentText(), set()
        was = self.blockSignals(True)
        self.clear()
        for group in self._groups:
            fresh = [place for place in group if place[0] not in seen]
            if fresh and self.count():
                self.insertSeparator(self.count())
            for value, words in fresh:
                seen.add(value)
                self.addItem(words)
                self.setItemData(self.count() - 1, plain_tooltip(value), Qt.ItemDataRole.ToolTipRole)
        self.setCurrentIndex(self.findText(text))
        self.setEditText(text)
        self.blockSignals(was)
