"""What an axis shows: a name, a unit, and how its values are written."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """For example Quantity("memory", "MB", 1): labelled "memory (MB)", written "123.4 MB". Whole: has no fractions."""

    name: str
    unit: str = ""
    decimals: int = 0
    whole: bool = False
    from_zero: bool = False  # whether an axis of it begins at 0: lengths can then be compared by eye

    @property
    def label(self) -> str:
        """The axis label."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float | None) -> str:
        """The value without its unit; a dash if there is none."""
        if value is None:
            return "–"
        return f"{value:.{self.decimals}f}" if math.isfinite(value) else "not finite"

    def text(self, value: float | None) -> str:
        """The value with its unit, if one may stand behind a number."""
        number = self.number(value)
        short = self.unit if self.unit in ("MB", "s") else ""
        return f"{number} {short}" if short and value is not None and math.isfinite(value) else number
