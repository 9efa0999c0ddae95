"""All wrong fields at once, with the core's messages."""

import pytest

from app.experiment.judge import as_text, check, real_number, whole_number
from mesp_core.errors import UsageError
from mesp_core.settings.run_config import RunConfig


def test_nothing_is_wrong_with_the_defaults():
    assert check({}) == {}


def test_every_wrong_field_is_named_and_says_what_runconfig_says():
    wrong = {"rank": "abc", "learning_rate": "fast", "seed": -1, "target_modules": (), "optimizer": "lion", "model": " "}
    errors = check(wrong | {"alpha": 8.0})
    assert errors.keys() == wrong.keys()
    for name, value in wrong.items():
        with pytest.raises(UsageError) as alone:
            RunConfig(**{name: value})
        assert f"{name}: {errors[name]}" == str(alone.value)


def test_rules_between_fields_are_judged_too():
    assert "not below steps (20)" in check({"warmup_steps": 20, "steps": 20})["warmup_steps"]


def test_a_wrong_field_does_not_make_another_one_wrong():
    assert check({"warmup_steps": 50, "steps": "many"}).keys() == {"steps"}


@pytest.mark.parametrize("value", [1e-3, 1e-4, 16.0, 0.1 + 0.2, 1e9, 0.0, 3])
def test_a_number_survives_being_shown(value):
    assert real_number(as_text(value)) == value


def test_what_is_no_number_stays_text():
    assert whole_number("8") == 8 and whole_number("8.5") == "8.5" and whole_number(" x ") == "x"
    assert real_number("1e-3") == 0.001 and real_number("0,5") == "0,5"
