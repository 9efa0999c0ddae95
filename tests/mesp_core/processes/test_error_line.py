"""An error that travels from a child to its parent is the same error there."""

import json

import pytest

from mesp_core import errors
from mesp_core.errors import MespError, NotFiniteError, UsageError
from mesp_core.planner.plans import BudgetTooSmall
from mesp_core.processes.error_line import from_values, to_values

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MespError)]


def travelled(error, complaint="It failed"):
    try:
        raise error
    except Exception as caught:
        return from_values(json.loads(json.dumps(to_values(caught))), complaint)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_kept_with_its_text(cls):
    error = cls("line 1: ä", *(["loss", 2.0, 3] if cls is NotFiniteError else []))
    again = travelled(error)
    assert type(again) is cls and str(again) == "line 1: ä" == again.args[0]
    assert (again.kind, again.exit_code) == (error.kind, error.exit_code)


def test_what_else_an_error_holds_is_kept():
    again = travelled(NotFiniteError("The loss became inf.", "loss", float("inf"), 7))
    assert (again.what, again.value, again.step) == ("loss", float("inf"), 7)


def test_one_of_another_file_is_of_the_nearest_class_that_all_know():
    """Its kind stays its own."""

    class Own(MespError):
        kind = "own"

    assert type(travelled(Own("x"))) is MespError and travelled(Own("x")).kind == "own"
    assert issubclass(BudgetTooSmall, UsageError)
    assert type(travelled(BudgetTooSmall.__new__(BudgetTooSmall, "too small"))) is UsageError


def test_any_other_error_is_one_of_ours_and_says_what_failed():
    again = travelled(ZeroDivisionError("by nought"), "check")
    assert type(again) is MespError and str(again) == "check: unexpected ZeroDivisionError: by nought"
    assert (again.kind, again.exit_code) == ("internal", 1)


def test_the_traceback_is_in_a_note_and_not_in_the_text():
    again = travelled(UsageError("no"))
    assert str(again) == "no" and "Traceback" in again.__notes__[0] and "raise error" in again.__notes__[0]
