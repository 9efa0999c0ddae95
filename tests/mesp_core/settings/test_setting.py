"""A declaration, and what follows from it: shown on a configuration that nobody runs."""

from dataclasses import dataclass

import pytest

from mesp_core.errors import UsageError
from mesp_core.settings.setting import setting, settings_of


def not_the_moon(place):
    if place == "moon":
        raise UsageError("place: the moon is too far.")


@dataclass(frozen=True)
class Journey:
    days: int = setting(3, "how long it lasts", between=(1, 30), label="Days")
    speed: float = setting(1.5, "how fast it goes", flag="--fast", between=(0.0, 9.0), above=True, tooltip="Its speed.")
    by: str = setting("rail", "how one goes", choices={"rail": "By rail", "foot": "On foot"})
    place: str = setting("sea", "where it leads", check=not_the_moon)
    diary: str = setting("", "where it is written down", empty="a notebook")
    stops: tuple[str, ...] = setting(("one",), "where one stops", choices={"one": "1", "two": "2"})


SETTINGS = settings_of(Journey)


def test_name_kind_and_default_are_those_of_the_field():
    assert list(SETTINGS) == ["days", "speed", "by", "place", "diary", "stops"]
    assert [each.kind for each in SETTINGS.values()] == ["whole", "real", "choice", "text", "text", "names"]
    assert [each.default for each in SETTINGS.values()] == list(vars(Journey()).values())


def test_what_is_not_said_follows():
    assert (SETTINGS["days"].flag, SETTINGS["days"].tooltip) == ("--days", "How long it lasts.")
    assert (SETTINGS["speed"].flag, SETTINGS["speed"].tooltip) == ("--fast", "Its speed.")


@pytest.mark.parametrize(
    "name, value, held",
    [
        ("days", 30, 30),
        ("speed", 9, 9.0),
        ("by", "foot", "foot"),
        ("place", "hills", "hills"),
        ("diary", "", ""),
        ("stops", ["two", "one", "two"], ("one", "two")),
    ],
)
def test_right_values(name, value, held):
    assert SETTINGS[name].checked(value) == held and type(SETTINGS[name].checked(value)) is type(held)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("days", 0, "days: 0 is not a whole number from 1 to 30."),
        ("days", True, "days: True is not a whole number from 1 to 30."),
        ("speed", 0, "speed: 0.0 is not a number above 0 to 9."),
        ("speed", 10, "speed: 10 is not a number above 0 to 9."),
        ("by", "air", "by: 'air' is not one of rail, foot."),
        ("place", " ", "place: ' ' is not a name or path; give a non-empty text."),
        ("place", "moon", "place: the moon is too far."),
        ("diary", " ", "diary: ' ' is no path; leave it empty for a notebook."),
        ("stops", "one", "stops: 'one' is not a list of names."),
        ("stops", ["three"], "stops: 'three' is not one of one, two."),
        ("stops", [], "stops: none given; name at least one of one, two."),
    ],
)
def test_wrong_values(name, value, said):
    with pytest.raises(UsageError) as caught:
        SETTINGS[name].checked(value)
    assert str(caught.value) == said


def test_a_declaration_says_nothing_that_no_setting_has():
    @dataclass
    class Wrong:
        days: int = setting(3, "how long it lasts", colour="green")

    with pytest.raises(TypeError, match="colour"):
        settings_of(Wrong)


def test_a_field_without_a_declaration_is_none_of_ours():
    @dataclass
    class Bare:
        days: int = 3

    with pytest.raises(KeyError):
        settings_of(Bare)
