"""What a setting is: all that is known about one, declared once, and how a value for it is judged.

The check of a configuration, the option of the command line, the field in the window and the row in README.md follow from
the declaration. Loads neither MLX nor Qt.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from mesp_core.errors import UsageError

Kind = Literal["whole", "real", "choice", "text", "names"]
Group = Literal["", "basic", "advanced"]

_KINDS: dict[Any, Kind] = {int: "whole", float: "real", str: "text", tuple[str, ...]: "names"}
_DECLARED = "setting"  # where a dataclass field keeps it


@dataclass(frozen=True)
class Setting:
    """One setting of a run.

    Attributes:
        name, kind, default: as the dataclass field says that declares it. A text with `choices` is of the kind `choice`.
        flag: its option on the command line; from the name if nothing is said.
        help: what it is, for the command line and for README.md; it begins small and ends without a full stop.
        between: the smallest and the largest number allowed.
        above: whether the smallest itself is refused.
        choices: what may be chosen, and its name on the screen. Of names, any may be, but at least one.
        empty: what an empty text stands for; "" where a text must not be empty.
        check: called with a value that is right by all of the above, to raise UsageError for another reason.
        label: its name in the window.
        tooltip: what it is, for the window; the sentence that `help` makes, if nothing is said.
        unit: of the number, for the window.
        offers: numbers to pick from in the window; others can be typed.
        group: the part of the window's form it stands in; "" where it has a place of its own.
        after: the setting it follows there, if that is not the one declared before it.
    """

    name: str
    kind: Kind
    default: Any
    flag: str
    help: str
    between: tuple[float, float] = (0, 0)
    above: bool = False
    choices: Mapping[str, str] = field(default_factory=dict)
    empty: str = ""
    check: Callable[[Any], object] | None = None
    label: str = ""
    tooltip: str = ""
    unit: str = ""
    offers: tuple[float, ...] = ()
    group: Group = ""
    after: str = ""

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        low, high = self.between
        return {
            "whole": f"a whole number from {low} to {high}",
            "real": f"a number {'above' if self.above else 'from'} {low:g} to {high:g}",
            "choice": f"one of {', '.join(self.choices)}",
            "text": "text",
            "names": f"one or more of {', '.join(self.choices)}",
        }[self.kind]

    def checked(self, value: Any) -> Any:
        """The value as a configuration holds it: a whole number becomes a real one, names come into one order.

        Raises:
            UsageError: for a wrong value, naming the setting, the value and what is allowed.
        """
        value = _CHECKS[self.kind](self, value)
        if self.check is not None:
            self.check(value)
        return value


def setting(default: Any, help: str, **facts: Any) -> Any:
    """The right-hand side of a dataclass field that declares a setting; `facts` are Setting's attributes."""
    return field(default=default, metadata={_DECLARED: {"help": help} | facts})


def settings_of(declaring: type) -> dict[str, Setting]:
    """Name -> setting, for every field of a dataclass, in their order.

    Raises:
        KeyError: if a field is not declared by `setting`, or its type is that of no setting.
        TypeError: if a declaration has an attribute that no setting has.
    """
    return {each.name: _of_field(each) for each in dataclasses.fields(declaring)}


def _of_field(declared: dataclasses.Field) -> Setting:
    facts = declared.metadata[_DECLARED]
    kind = "choice" if declared.type is str and "choices" in facts else _KINDS[declared.type]
    help = facts["help"]
    follows = {"flag": f"--{declared.name.replace('_', '-')}", "tooltip": f"{help[:1].upper()}{help[1:]}."}
    return Setting(name=declared.name, kind=kind, default=declared.default, **follows | facts)


def _refuse(setting: Setting, value: Any, reason: str = "") -> NoReturn:
    raise UsageError(f"{setting.name}: {value!r} is {reason or f'not {setting.allowed}'}.")


def _whole(setting: Setting, value: Any) -> int:
    low, high = setting.between
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(setting, value)
    return value


def _real(setting: Setting, value: Any) -> float:
    low, high = setting.between
    if type(value) is int and low <= value <= high:  # JSON writes 16.0 as 16
        value = float(value)
    if not isinstance(value, float) or not math.isfinite(value) or not low <= value <= high:
        _refuse(setting, value)
    if setting.above and value == low:
        _refuse(setting, value)
    return value


def _choice(setting: Setting, value: Any) -> str:
    if not isinstance(value, str) or value not in setting.choices:
        _refuse(setting, value)
    return value


def _text(setting: Setting, value: Any) -> str:
    if setting.empty:
        if not isinstance(value, str) or (value and not value.strip()):
            _refuse(setting, value, f"no path; leave it empty for {setting.empty}")
    elif not isinstance(value, str) or not value.strip():
        _refuse(setting, value, "not a name or path; give a non-empty text")
    return value


def _names(setting: Setting, value: Any) -> tuple[str, ...]:
    known = ", ".join(setting.choices)
    if not isinstance(value, tuple | list | set | frozenset) or not all(isinstance(name, str) for name in value):
        _refuse(setting, value, "not a list of names")
    for name in value:
        if name not in setting.choices:
            _refuse(setting, name, f"not one of {known}")
    if not value:
        raise UsageError(f"{setting.name}: none given; name at least one of {known}.")
    # One order, so that two configurations that mean the same are equal.
    return tuple(name for name in setting.choices if name in value)


_CHECKS: dict[Kind, Callable[[Setting, Any], Any]] = {
    "whole": _whole,
    "real": _real,
    "choice": _choice,
    "text": _text,
    "names": _names,
}
