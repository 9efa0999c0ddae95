"""Which row of a growing table shows which item, sorted by one key."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

Key = float | None


class RowOrder:
    """Items 0, 1, 2, … in the order of their keys; those without a key (None or NaN) come last, up or down.

    Among equal keys the earlier item comes first. New items find their place by bisection, so that nothing is sorted
    again while a run goes.
    """

    def __init__(self) -> None:
        self.items: list[int] = []  # items[row]
        self._keys: list[float] = []  # of the rows that have one, ascending; negated to sort downwards
        self._sign = 1

    def arrange(self, keys: Sequence[Key], descending: bool = False) -> None:
        """Sort items 0 … len(keys) - 1 anew by keys[item]."""
        self._sign = -1 if descending else 1
        signed = self._sign * np.asarray(keys, float)  # None becomes NaN
        order = np.argsort(signed, kind="stable")  # NaN comes last
        with_key = len(signed) - int(np.isnan(signed).sum())
        self._keys = signed[order[:with_key]].tolist()
        self.items = order.tolist()

    def place(self, key: Key) -> int:
        """The row where the next item belongs if it has this key."""
        return len(self.items) if _is_none(key) else bisect_right(self._keys, self._sign * key)

    def insert(self, key: Key) -> None:
        """Take in the next item, at `place(key)`."""
        row = self.place(key)
        if not _is_none(key):
            self._keys.insert(row, self._sign * key)
        self.items.insert(row, len(self.items))

    def append(self, count: int) -> None:
        """Put the next `count` items at the end for now; `arrange` is to follow before the next `insert`."""
        self.items.extend(range(len(self.items), len(self.items) + count))

    def rows(self, items: Iterable[int]) -> list[int]:
        """The rows of these items."""
        rows = np.empty(len(self.items), int)
        rows[self.items] = np.arange(len(self.items))
        return rows[list(items)].tolist()


def _is_none(key: Key) -> bool:
    return key is None or key != key  # NaN differs from itself
