"""Staying at the end of what grows, as long as the person is there."""

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QScrollBar


class FollowEnd(QObject):
    """Keeps a scroll bar at its end while it grows, if it was there and `wanted()`; scrolling up lets go of the end."""

    def __init__(self, bar: QScrollBar, wanted: Callable[[], bool] = lambda: True) -> None:
        super().__init__(bar)
        self._bar, self._wanted, self._at_end = bar, wanted, True
        bar.valueChanged.connect(self._moved)
        bar.rangeChanged.connect(self._grown)

    def _moved(self, value: int) -> None:
        self._at_end = value == self._bar.maximum()

    def _grown(self) -> None:
        if self._at_end and self._wanted():
            self._bar.setValue(self._bar.maximum())
