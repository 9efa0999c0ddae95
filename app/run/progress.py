"""Where a run stands, in words: which method, step i of n, seconds a step, time left. Pure Python."""

import statistics
from collections import deque
from collections.abc import Sequence

from app.widgets.wording import duration

RECENT = 20  # steps whose median stands for the speed of now


class Progress:
    """Counts steps; `text` and `fraction` say how far the run is."""

    def __init__(self, methods: Sequence[str], steps: int) -> None:
        self._methods, self._steps = tuple(methods), steps
        self._done = dict.fromkeys(self._methods, 0)
        self._open = set(self._methods)
        self._recent: dict[str, deque[float]] = {method: deque(maxlen=RECENT) for method in self._methods}
        self._current = ""

    def load(self, method: str) -> None:
        """A method's worker is ready."""
        self._current = method

    def add(self, method: str, step: int, seconds: float) -> None:
        """A step was done."""
        self._current = method
        self._done[method] = step
        self._recent[method].append(seconds)

    def end(self, method: str) -> None:
        """A method does no further step."""
        self._open.discard(method)

    @property
    def fraction(self) -> float:
        """0 to 1, by steps of all methods."""
        ended = (self._steps if method not in self._open else self._done[method] for method in self._methods)
        return sum(ended) / (self._steps * len(self._methods))

    @property
    def seconds_left(self) -> float | None:
        """By the speed of each method's last steps; one that did none yet is taken to be as fast as the others."""
        known = {method: statistics.median(recent) for method, recent in self._recent.items() if recent}
        if not known:
            return None
        usual = statistics.fmean(known.values())
        return sum((self._steps - self._done[method]) * known.get(method, usual) for method in self._open)

    @property
    def text(self) -> str:
        """One line for the status bar."""
        method = self._current
        if not method:
            return "Starting the first worker"
        place = f"{method} ({self._methods.index(method) + 1} of {len(self._methods)})"
        parts = [f"{place}: step {self._done[method]} of {self._steps}"]
        if self._recent[method]:
            parts.append(f"{statistics.median(self._recent[method]):.3g} s/step")
        if (left := self.seconds_left) is not None:
            parts.append(f"{duration(left)} left")
        return "  ·  ".join(parts)
