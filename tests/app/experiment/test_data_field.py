"""Choosing data, and fetching WikiText-2."""

import threading
from types import SimpleNamespace

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QLineEdit

from mesp_core.errors import MespError
from mesp_core.files.cache import cache_dir


class Tokens(SimpleNamespace):
    def __len__(self):
        return self.samples


def pick(qtbot, box, text):
    """With keys: the arrow down until the list's item is reached."""
    box.setFocus()
    for _ in range(box.count()):
        if box.currentText() == text:
            return
        qtbot.keyClick(box, Qt.Key.Key_Down)
    assert box.currentText() == text


def test_the_sample_is_chosen_at_first(make_data):
    field = make_data(["/data/mine.jsonl", "sample"])
    assert field.value() == "sample"
    words = [field.box.itemText(i) for i in range(field.box.count()) if field.box.itemText(i)]
    assert words == ["Sample (bundled)", "WikiText-2", "/data/mine.jsonl"]


def test_counts_are_told_in_words(make_data, find):
    field = make_data()
    status = find(field, "data_status")
    field.set_tokens(Tokens(samples=1262, skipped=3, truncated=12))
    assert status.text() == "1,262 samples · 3 skipped · 12 cut" and status.isVisible()
    field.set_tokens(Tokens(samples=1, skipped=0, truncated=0))
    assert status.text() == "1 sample"
    field.set_tokens(None)
    assert not status.isVisible()


def test_wikitext_is_fetched_once_off_the_main_thread(make_data, qtbot, find, monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    go_on, calls = threading.Event(), []

    def build(file):
        calls.append((file, threading.current_thread()))
        assert go_on.wait(5)
        file.parent.mkdir()
        file.write_text('{"text": "a b c"}\n')

    field = make_data(build_wikitext2=build)
    with qtbot.waitSignal(field.changed):
        pick(qtbot, field.box, "WikiText-2")
    assert field.value() == str(cache_dir() / "data" / "wikitext2.jsonl")
    assert field.fetching and find(field, "data_busy").isVisible()
    go_on.set()
    qtbot.waitUntil(lambda: not field.fetching)
    assert field.problem == "" and not find(field, "data_busy").isVisible()
    assert calls[0][1] is not threading.main_thread()
    field.set_value("sample")
    field.set_value(str(cache_dir() / "data" / "wikitext2.jsonl"))
    assert not field.fetching and len(calls) == 1
    assert field.box.currentText() == "WikiText-2"


def test_a_failed_fetch_says_why_and_enter_tries_again(make_data, qtbot, monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    answers = [MespError("The hub cannot be reached."), None]

    def build(file):
        if (answer := answers.pop(0)) is not None:
            raise answer
        file.parent.mkdir()
        file.write_text("{}\n")

    field = make_data(build_wikitext2=build)
    pick(qtbot, field.box, "WikiText-2")
    qtbot.waitUntil(lambda: field.problem == "The hub cannot be reached.")
    qtbot.keyClick(field.box, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not field.fetching and not answers)
    assert field.problem == ""


def test_closing_does_not_wait_for_the_network(make_data, monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    hangs = threading.Event()
    field = make_data(build_wikitext2=lambda file: hangs.wait(30))
    field.set_value(str(tmp_path / "data" / "wikitext2.jsonl"))
    assert field.fetching
    field.close_background()
    assert not field.fetching
    assert all(not task.isRunning() for task in field._fetch._old)
    hangs.set()


def test_the_file_dialog_does_not_block_and_its_choice_counts(make_data, qtbot, tmp_path, find):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "a"}\n')
    field = make_data()
    qtbot.mouseClick(find(field, "open_data"), Qt.MouseButton.LeftButton)
    dialog = field.findChild(QFileDialog, "open_data_dialog")
    assert dialog.isVisible()
    dialog.findChild(QLineEdit, "fileNameEdit").setText(str(file))
    with qtbot.waitSignal(field.changed):
        dialog.accept()
    assert field.value() == str(file)
