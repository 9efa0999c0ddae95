"""The log: what a line says, its colour, plain text, staying at the end."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QTextCursor

from app.tabs.log_tab import MAX_CHARACTERS, MAX_LINES, LogTab
from app.widgets.theme import level_color, set_appearance
from mesp_core.runs.events import Log


@pytest.fixture
def tab(shown):
    return shown(LogTab())


def color(tab, line):
    """Of the first letter of a line; None if it has no colour of its own."""
    block = tab.text.document().findBlockByNumber(line)
    cursor = QTextCursor(block)
    cursor.movePosition(QTextCursor.MoveOperation.Right)
    brush = cursor.charFormat().foreground()
    return None if brush.style() == Qt.BrushStyle.NoBrush else brush.color()


def test_a_line_has_time_method_level_and_message(tab):
    tab.add(Log("mesp:weights=resident", "info", "<b>bold</b><img src=x>"))
    tab.say("Saved & done.", "warning")
    first, second = tab.text.toPlainText().splitlines()
    assert first[2] == first[5] == ":" and first[8:] == "  mesp:weights=resident  info:  <b>bold</b><img src=x>"
    assert second.endswith("  app  warning:  Saved & done.")
    assert tab.text.isReadOnly()


def test_warnings_and_errors_are_coloured_on_either_ground(tab, qtbot):
    tab.say("plain")
    tab.say("careful", "warning")
    tab.say("it died\nlast words", "error")
    try:
        for appearance in ("light", "dark", "light"):
            set_appearance(appearance)
            expected = [None, level_color("warning"), level_color("bad"), level_color("bad")]
            qtbot.waitUntil(lambda colors=expected: [color(tab, line) for line in range(4)] == colors)
    finally:
        set_appearance("light")


def test_stays_at_the_end_only_if_the_person_is_there(tab, qtbot):
    bar = tab.text.verticalScrollBar()
    for number in range(60):
        tab.say(f"line {number}")
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    assert bar.value() == bar.maximum()
    qtbot.keyClick(tab.text, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    assert bar.value() == 0
    tab.say("more")
    assert bar.value() == 0
    bar.setValue(bar.maximum())
    tab.say("even more")
    assert bar.value() == bar.maximum()


def test_a_new_line_leaves_a_selection_alone_and_it_can_be_copied(tab, qtbot):
    tab.say("first")
    qtbot.keyClick(tab.text, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    tab.say("second")
    qtbot.keyClick(tab.text, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text().endswith("first")


def test_forgets_the_oldest_lines(tab):
    tab.say("\n".join(f"line {number}" for number in range(MAX_LINES + 5)))
    assert tab.text.blockCount() == MAX_LINES
    assert tab.text.document().firstBlock().text().endswith("line 5")
    tab.say("last")
    assert tab.text.blockCount() == MAX_LINES
    assert tab.text.document().firstBlock().text().endswith("line 6")


def test_an_endless_line_is_cut(tab):
    tab.say("x" * 1_000_000)
    assert tab.text.toPlainText().endswith("x …") and len(tab.text.toPlainText()) < MAX_CHARACTERS + 100


def test_nothing_is_selected_by_what_is_logged(qtbot):
    tab = LogTab()
    qtbot.addWidget(tab)
    for number in range(5):
        tab.say(f"line {number}")
    assert not tab.text.textCursor().hasSelection()


def test_a_selection_that_reaches_the_end_stays_as_it_is(qtbot):
    tab = LogTab()
    qtbot.addWidget(tab)
    tab.say("first")
    tab.text.selectAll()
    before = tab.text.textCursor().selectedText()
    tab.say("second")
    assert tab.text.textCursor().selectedText() == before and "second" in tab.text.toPlainText()
