"""Points of one curve, kept for as long as the run is shown: cheap to add to, cheap to draw any part of. No Qt."""

import math
from typing import NamedTuple

import numpy as np


class Bounds(NamedTuple):
    """The rectangle of all points with a finite y; x covers the others as well."""

    left: float
    right: float
    low: float
    high: float

    def united(self, other: "Bounds") -> "Bounds":
        """The smallest rectangle around both."""
        return Bounds(
            min(self.left, other.left), max(self.right, other.right), min(self.low, other.low), max(self.high, other.high)
        )


class Series:
    """Points (x, y) whose x never decreases. A y that is no finite number is a gap in the curve; a point whose x is
    none has no place and is left out.

    Shapes: `x` and `y` are views (points,), float64; they are valid until the next `add`.
    """

    def __init__(self) -> None:
        self._points = np.empty((2, 256))
        self._size = 0
        self._low, self._high = math.inf, -math.inf

    def __len__(self) -> int:
        return self._size

    @property
    def x(self) -> np.ndarray:
        """All x, in order."""
        return self._points[0, : self._size]

    @property
    def y(self) -> np.ndarray:
        """All y; NaN where there was no finite number."""
        return self._points[1, : self._size]

    @property
    def last(self) -> float | None:
        """The newest y."""
        return float(self._points[1, self._size - 1]) if self._size else None

    @property
    def bounds(self) -> Bounds | None:
        """None if no y is finite yet."""
        if self._low > self._high:
            return None
        return Bounds(float(self._points[0, 0]), float(self._points[0, self._size - 1]), self._low, self._high)

    def add(self, x: float, y: float) -> None:
        """Append a point: amortised constant time, by doubling."""
        if not math.isfinite(x):
            return
        if self._size == self._points.shape[1]:
            self._points = np.concatenate([self._points, np.empty_like(self._points)], axis=1)
        if math.isfinite(y):
            self._low, self._high = min(self._low, y), max(self._high, y)
        else:
            y = math.nan
        self._points[:, self._size] = x, y
        self._size += 1

    def nearest(self, x: float) -> tuple[float, float] | None:
        """The point whose x is nearest; None if there is no point."""
        if not self._size:
            return None
        right = min(int(np.searchsorted(self.x, x)), self._size - 1)
        left = max(right - 1, 0)
        index = left if x - self.x[left] <= self.x[right] - x else right
        return float(self.x[index]), float(self.y[index])

    def outline(self, left: float, right: float, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """What to draw of left … right on so many columns of pixels: lowest and highest y of every bucket of points.

        Returns x and y of shape (n,), n ≤ 2·columns + 4; all points as they are where they are few enough.
        """
        start, stop, stride = self._window(left, right, columns)
        if stride == 1:
            return self.x[start:stop].copy(), self.y[start:stop].copy()
        # fmin and fmax pass over NaN, so that one lost value does not take its whole bucket away
        y = np.stack([_each(np.fmin, self.y[start:stop], stride), _each(np.fmax, self.y[start:stop], stride)], axis=1)
        return np.repeat(self.x[start:stop:stride], 2), y.ravel()

    def peaks(self, left: float, right: float, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """The highest point of every bucket, at its own x; about one a column, for marks that need room."""
        start, stop, stride = self._window(left, right, columns)
        x, y = self.x[start:stop], self.y[start:stop]
        if stride == 1:
            return x.copy(), y.copy()
        full = len(y) // stride * stride
        height = np.where(np.isnan(y), -np.inf, y)  # argmax would pick a lost value before all others
        picked = height[:full].reshape(-1, stride).argmax(axis=1) + np.arange(0, full, stride)
        if full < len(y):
            picked = np.append(picked, full + height[full:].argmax())
        return x[picked], y[picked]

    def _window(self, left: float, right: float, buckets: int) -> tuple[int, int, int]:
        """start, stop and stride of at most `buckets` buckets (and one or two at the edges) around left … right.

        Strides are powers of two and buckets begin at multiples of them: so the same points share a bucket however
        the view is moved, and a curve that is dragged does not flicker.
        """
        start = max(0, int(np.searchsorted(self.x, left)) - 1)
        stop = min(self._size, int(np.searchsorted(self.x, right, side="right")) + 1)
        stride = 1
        while (stop - start) > buckets * stride:
            stride *= 2
        return start // stride * stride, min(self._size, -(-stop // stride) * stride), stride


def _each(pick: np.ufunc, values: np.ndarray, stride: int) -> np.ndarray:
    """`pick` over every `stride` values; the last bucket may be shorter."""
    full = len(values) // stride * stride
    picked = pick.reduce(values[:full].reshape(-1, stride), axis=1)
    return np.append(picked, pick.reduce(values[full:])) if full < len(values) else picked
