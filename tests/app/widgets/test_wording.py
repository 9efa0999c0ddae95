"""Numbers in words."""

import pytest

from app.widgets.wording import counted, duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.4, "0 s"), (59.6, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (1110, "1,110 rows")])
def test_counted(number, text):
    assert counted(number, "row") == text
