"""A panel whose hub is not the user's: nothing cached, nothing to download, unless a test says so."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QWidget

from app.experiment.data_field import DataField
from app.experiment.model_field import ModelField
from app.experiment.panel import ExperimentPanel
from app.experiment.preparation import Preparation


def nothing(*_):
    """A hub that must not be asked."""
    raise AssertionError("the hub was asked")


def field_maker(kind, qtbot, **usual):
    """The body of a fixture that gives make(recent=(), **replacements) -> a field of this kind, shown."""
    made = []

    def make(recent=(), **replaced):
        field = kind(recent, **usual | replaced)
        qtbot.addWidget(field)
        made.append(field)
        field.show()
        return field

    yield make
    for field in made:
        field.close_background()


@pytest.fixture
def make_model(qtbot):
    """make_model(**replacements) -> a model field, shown."""
    yield from field_maker(ModelField, qtbot, list_cached=list, fetch=nothing)


@pytest.fixture
def make_data(qtbot):
    """make_data(**replacements) -> a data field, shown."""
    yield from field_maker(DataField, qtbot, build_wikitext2=nothing)


@pytest.fixture
def make_panel(qtbot):
    """make_panel(model=None, data=None, before_shown=None, plan_line=None, **replaced) -> a panel, shown and active.

    `before_shown` is called with it when it was made; `replaced` is of its preparation.
    """
    made = []

    def make(model=None, data=None, before_shown=None, plan_line=None, **replaced):
        model = model or ModelField(list_cached=list, fetch=nothing)
        data = data or DataField(build_wikitext2=nothing)
        preparation = Preparation(**{"quiet_ms": 20} | replaced)
        panel = ExperimentPanel(model=model, data=data, preparation=preparation, plan_line=plan_line)
        made.append(panel)
        qtbot.addWidget(panel)
        panel.resize(330, 700)
        if before_shown is not None:
            before_shown(panel)
        panel.show()
        panel.activateWindow()
        return panel

    yield make
    for panel in made:
        panel.close_background()


class Heard:
    """What a panel has told, in order."""

    def __init__(self, panel):
        self.ready, self.data = [], []
        panel.ready_changed.connect(self.ready.append)
        for name in ("prepared", "preparing", "unprepared"):
            getattr(panel, name).connect(lambda what, name=name: self.data.append((name, what)))

    @property
    def now(self):
        return self.data[-1][0] if self.data else None


@pytest.fixture
def hear():
    """hear(panel) -> a record of what it tells: `ready`, `data`, and `now`, the name of the latest about its data."""
    return Heard


@pytest.fixture
def panel(make_panel, qtbot):
    """A panel whose data are prepared; panel.heard is what it told."""
    panel = make_panel()
    panel.heard = Heard(panel)
    qtbot.waitUntil(lambda: panel.heard.now == "prepared")
    return panel


@pytest.fixture
def choose(qtbot):
    """choose(box, text): pick an item by keys, as from a list that has the focus."""

    def pick(box, text):
        box.setFocus()
        qtbot.keyClick(box, Qt.Key.Key_Home)
        while box.currentText() != text:
            before = box.currentIndex()
            qtbot.keyClick(box, Qt.Key.Key_Down)
            assert box.currentIndex() != before, text

    return pick


@pytest.fixture
def click(qtbot):
    """click(button): with the mouse, on its box or swatch."""
    return lambda button: qtbot.mouseClick(button, Qt.MouseButton.LeftButton, pos=QPoint(8, button.height() // 2))


@pytest.fixture
def find():
    """find(widget, name) -> its child of that object name."""

    def look(widget, name):
        child = widget.findChild(QWidget, name)
        assert child is not None, name
        return child

    return look


@pytest.fixture
def type_into(qtbot, find):
    """type_into(panel, name, text): click the field, replace what is there by keys."""

    def enter(panel, name, text):
        editor = find(panel, name)
        line = editor.lineEdit() if hasattr(editor, "lineEdit") else editor
        qtbot.mouseClick(line, Qt.MouseButton.LeftButton)
        qtbot.keyClick(line, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
        qtbot.keyClick(line, Qt.Key.Key_Delete)
        qtbot.keyClicks(line, text)

    return enter


@pytest.fixture
def error_of(find):
    """error_of(panel, name) -> the message at a field."""
    return lambda panel, name: find(panel, f"error_{name}").text()
