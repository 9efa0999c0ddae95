"""Foreign text on the screen is what it is."""

import pytest
from PySide6.QtGui import Qt, QTextDocument

from app.widgets.plain import plain_tooltip


@pytest.mark.parametrize(
    "text",
    [
        "/a/folder/with  two   blanks in it",
        "  indented\n\n    more so\n\tby a tab",
        "<b>bold</b> &amp; <img src=x> & \"quoted\" 'text'",
        "</qt><h1>out</h1>",
    ],
)
def test_a_tooltip_shows_the_text_as_it_is(qapp, text):
    tooltip = plain_tooltip(text)
    assert Qt.mightBeRichText(tooltip)  # or Qt would show the tags
    document = QTextDocument()
    document.setHtml(tooltip)
    assert document.toPlainText() == text


def test_long_lines_of_a_tooltip_are_broken(qapp):
    document = QTextDocument()
    document.setHtml(plain_tooltip("many words " * 100))
    document.setTextWidth(300)
    assert document.idealWidth() <= 300 and document.lineCount() == 1 and document.size().height() > 100


def test_no_text_no_tooltip():
    assert plain_tooltip("") == ""
