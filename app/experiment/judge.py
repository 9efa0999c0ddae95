"""Judging the fields: every wrong one at once, each with the core's own message. No Qt."""

from typing import Any

from mesp_core.errors import UsageError
from mesp_core.settings.run_config import SETTINGS, RunConfig

# A wrong field is left out while the others are judged. Where the default in its place could make another one wrong
# (warm-up steps must stay below steps), this takes the place instead.
_STAND_INS = {"steps": SETTINGS["steps"].between[1]}


def check(values: dict[str, Any]) -> dict[str, str]:
    """Field -> what is wrong with it, for values of RunConfig's fields as they were typed; {} if nothing is.

    `RunConfig` stops at the first wrong value and names it, so that one is taken out and the rest is judged again.
    """
    left, errors = dict(values), {}
    while True:
        try:
            RunConfig(**left)
        except UsageError as error:
            name, _, message = str(error).partition(": ")
            if name not in left or name in errors:
                raise
            errors[name] = message
            del left[name]
            if name in _STAND_INS:
                left[name] = _STAND_INS[name]
        else:
            return errors


def whole_number(text: str) -> int | str:
    """The number a text stands for, or the text itself, which `check` then refuses by name."""
    try:
        return int(text)
    except ValueError:
        return text.strip()


def real_number(text: str) -> float | str:
    """As `whole_number`, with decimals."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def as_text(value: float) -> str:
    """The shortest text that gives the number back."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
