"""An error on its way from a child to its parent: the JSON it travels in, and how it is raised again. Loads no MLX."""

import traceback
from typing import Any

from mesp_core import errors
from mesp_core.errors import MespError

INTERNAL = "internal"  # the kind of an error that is none of mesp_core.errors: a mistake of ours


def to_values(error: Exception) -> dict[str, Any]:
    """What is sent of an error that is being handled; `details` is its traceback."""
    known = isinstance(error, MespError)
    return {
        "error": _class_name(error) if known else "MespError",
        "kind": error.kind if known else INTERNAL,
        "message": str(error) if known else f"unexpected {type(error).__name__}: {error}",
        "exit_code": error.exit_code if known else 1,
        "fields": {name: value for name, value in vars(error).items() if known and isinstance(value, str | int | float)},
        "details": traceback.format_exc(),
    }


def from_values(values: dict[str, Any], complaint: str) -> MespError:
    """The error again: the same class, text and fields. `complaint` says what failed where the text itself cannot.

    The child's traceback is a note on it: a traceback shows it, the text does not.
    """
    cls = getattr(errors, values["error"])
    internal = values["kind"] == INTERNAL
    # Not called: some are made from more than their text.
    error = cls.__new__(cls, f"{complaint}: {values['message']}" if internal else values["message"])
    vars(error).update(values["fields"], kind=values["kind"], exit_code=values["exit_code"])
    error.add_note(values["details"])
    return error


def _class_name(error: MespError) -> str:
    """That of the nearest of its classes which stands in mesp_core.errors, where every process finds it."""
    return next(cls.__name__ for cls in type(error).__mro__ if vars(errors).get(cls.__name__) is cls)
