"""A model's config.json with typed access; every complaint names the file and the field.

A field that is left out means what it means to mlx-lm, and so does one that is null: mlx-lm takes the null, not the default.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn

from mesp_core.errors import CheckpointError

LARGEST_INTEGER = 2**31 - 1
FLOAT32 = (1.2e-38, 3.4e38)  # the smallest normal number and the largest one

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 80, 80, 40


class ConfigReader:
    """The fields of one JSON object, `prefix` being how its own name goes before theirs in complaints."""

    def __init__(self, file: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.file, self.values, self._prefix = file, values, prefix

    def integer(self, name: str, default: int | None = None, largest: int = LARGEST_INTEGER) -> int:
        """A positive whole number."""
        value = self._get(name, default)
        if type(value) is not int or value <= 0:
            self.fail(name, value, "a whole number above 0")
        if value > largest:
            self.fail(name, value, f"a whole number up to {largest:,}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A positive number that float32 can hold."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not value > 0:
            self.fail(name, value, "a number above 0")
        if not FLOAT32[0] <= value <= FLOAT32[1] or not math.isfinite(value):
            self.fail(name, value, "a number above 0 that fits into float32")
        return float(value)

    def boolean(self, name: str, default: bool, null: bool | None = None) -> bool:
        """true or false; `null` is what null means, if it may stand there."""
        value = self.values.get(name, default)
        if value is None and null is not None:
            return null
        if type(value) is not bool:
            self.fail(name, value, "true or false")
        return value

    def object(self, name: str) -> "ConfigReader | None":
        """An object's own reader; None where there is none."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(name, value, "an object")
        return ConfigReader(self.file, value, f"{self._prefix}{name}.")

    def require(self, name: str, default: Any, *allowed: Any) -> None:
        """Refuse a setting whose maths is not ours."""
        value = self.values.get(name, default)
        if value not in allowed:
            self.fail(name, value, "one of " + ", ".join(repr(a) for a in allowed))

    def fail(self, name: str, value: Any, expected: str) -> NoReturn:
        """Raise a CheckpointError on one field."""
        raise CheckpointError(f"{self.file}: {self._prefix}{name} is {shown(value)}; supported is {expected}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise CheckpointError(
                f"{self.file}: the field {self._prefix}{name} is missing; is this the config.json of a language model?"
            )
        return value


def shown(value: Any) -> str:
    """A value as it stands in a complaint: cut short where it is long or deep."""
    return _SHORT.repr(value)
