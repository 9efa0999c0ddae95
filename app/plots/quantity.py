"""What an axis shows: a name, a unit, and how its values are written."""

import math
from dataclasses import dataclass

WHOLE_FROM = 1000  # from here on fractions say nothing any more
POWERS_FROM = 1e7  # from here on digits are no longer counted at a glance


@dataclass(frozen=True)
class Quantity:
    """For example Quantity("memory", "MB", 1): labelled "memory (MB)", written "123.4 MB". Whole: has no fractions."""

    name: str
    unit: str = ""
    decimals: int = 0
    whole: bool = False
    from_zero: bool = False  # whether an axis of it begins at 0: lengths can then be compared by eye
    short_unit: str = ""  # the unit as it is written where it does not fit

    @property
    def labels(self) -> tuple[str, ...]:
        """The axis label, then what is left of it where there is less room."""
        shorter = tuple(filter(None, (self.unit, self.short_unit)))
        return (f"{self.name} ({self.unit})", *shorter) if self.unit else (self.name,)

    def number(self, value: float | None) -> str:
        """The value without its unit; a dash if there is none."""
        if value is None:
            return "–"
        if not math.isfinite(value):
            return "not finite"
        if abs(value) >= POWERS_FROM and not self.whole:
            return short_power(f"{value:.3g}")
        return f"{value:.{0 if abs(value) >= WHOLE_FROM else self.decimals}f}"

    def text(self, value: float | None) -> str:
        """The value with its unit, if one may stand behind a number."""
        number = self.number(value)
        short = self.unit if self.unit in ("MB", "s") else ""
        return f"{number} {short}" if short and value is not None and math.isfinite(value) else number


def short_power(number: str) -> str:
    """1e+06 as 1e6, 5e-05 as 5e-5: half as wide, and as clear."""
    return number.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
