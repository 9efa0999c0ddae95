"""The samples: pages, the selected one with what carries loss, plain text, errors with the line of the file."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.tabs import error_view
from app.tabs.data_tab import DataTab
from app.tabs.raw_line import MAX_BYTES, place_of, raw_line
from app.tabs.samples_model import SAMPLE_COLUMNS
from app.threads.background import Task
from app.widgets.plain import plain_tooltip
from app.widgets.theme import set_appearance
from mesp_core.data.preview import Piece, PreviewSample
from mesp_core.data.token_set import TokenSet, TokenSetWriter
from mesp_core.errors import DataError

HEADINGS = [column.heading for column in SAMPLE_COLUMNS]
HTML = "<b>bold</b><img src=x>"


def sample(index, **changes):
    """Three tokens of the user's, four of the assistant's that carry loss, one more that does not."""
    pieces = (Piece(f"<|user|>{HTML} 🙂\n", False), Piece("é\r\nanswer 🙂 ", True), Piece("end", False))
    learnt = (False,) * 3 + (True,) * 4 + (False,)
    made = PreviewSample(index, 2 * index + 1, ("user", "assistant"), tuple(range(index, index + 8)), learnt, pieces)
    return replace(made, **changes)


class FakeLoad:
    """Stands in for preview: makes samples, notes what was asked for, may wait or fail."""

    def __init__(self):
        self.asked, self.error = [], None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.first_sample = {}

    def __call__(self, tokens, data_file, model_dir, first, count, on_progress):
        self.asked.append(first)
        while not self.may_go_on.wait(0.01):
            on_progress("Reading", 0.0)
        if self.error:
            raise self.error
        indices = range(first, min(first + count, len(tokens)))
        return [sample(index, **(self.first_sample if index == 0 else {})) for index in indices]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A token set of 250 samples as `prepare` gives it, without a model."""
    folder = tmp_path_factory.mktemp("tokens")
    writer = TokenSetWriter(folder)
    for index in range(250):
        writer.add(np.arange(8), np.ones(8, np.uint8), 2 * index + 1)
    writer.close(kind="chat", rows=260, skipped=10, truncated=3)
    file = Path("/some/folder/a <i>name</i> that is much too long to be shown as a whole " + 10 * "and goes on " + ".jsonl")
    return SimpleNamespace(tokens=TokenSet.open(folder), data_file=file, source=SimpleNamespace(path=Path("/model")))


@pytest.fixture
def load():
    return FakeLoad()


@pytest.fixture
def tab(qtbot, load):
    tab = DataTab(load)
    qtbot.addWidget(tab, before_close_func=lambda tab: (load.may_go_on.set(), tab.close_background()))
    tab.resize(950, 230)
    tab.show()
    return tab


@pytest.fixture
def full(tab, prepared, qtbot):
    """The tab with its first page."""
    tab.show_data(prepared)
    qtbot.waitUntil(tab.page.isVisible)
    return tab


def cells(tab, row):
    return {HEADINGS[n]: tab.model.index(row, n).data().strip() for n in range(len(HEADINGS))}


def highlighted(tab):
    """The parts of the sample's text that have a background."""
    parts, block = [], tab.sample.text.document().firstBlock()
    while block.isValid():
        iterator = block.begin()
        while not iterator.atEnd():
            fragment = iterator.fragment()
            if fragment.charFormat().background().style() != Qt.BrushStyle.NoBrush:
                parts.append(fragment.text())
            iterator += 1
        block = block.next()
    return parts


def go(tab, qtbot, name):
    button = next(button for button in tab.buttons if button.text() == name)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def enabled(tab):
    return [button.text() for button in tab.buttons if button.isEnabled()]


def test_says_what_is_missing_before_there_are_data(tab):
    assert tab.empty.isVisible() and "data file" in tab.empty.text()


def test_shows_the_samples_and_the_facts_of_the_file(full, prepared):
    assert full.facts.text() == "chat · 250 samples of 260 rows · 10 skipped · 3 cut · at most 8 tokens a sample"
    assert "…" in full.file.text() and full.file.textFormat() == Qt.TextFormat.PlainText
    assert full.file.toolTip() == plain_tooltip(str(prepared.data_file))
    shown = cells(full, 1)
    assert shown.pop("text").startswith(f"<|user|>{HTML}")
    assert shown == {"sample": "2", "line": "3", "roles": "user → assistant", "tokens": "8", "trained tokens": "4"}
    assert full.sample.text.toPlainText() == f"<|user|>{HTML} 🙂\né\nanswer 🙂 end"
    assert full.sample.text.isReadOnly()


def test_what_carries_loss_is_highlighted_in_text_and_ids(full, qtbot):
    assert highlighted(full) == ["é", "answer 🙂 "]
    assert full.sample.legend.isVisible() and "loss" in full.sample.legend.text()
    qtbot.mouseClick(full.sample.as_ids, Qt.MouseButton.LeftButton, pos=full.sample.as_ids.rect().center() / 4)
    assert full.sample.text.toPlainText() == "0 1 2 3 4 5 6 7"
    assert highlighted(full) == ["3 4 5 6"]
    qtbot.keyClick(full.view, Qt.Key.Key_Down)
    assert full.sample.text.toPlainText() == "1 2 3 4 5 6 7 8"
    full.sample.as_text.click()
    assert highlighted(full) == ["é", "answer 🙂 "]


def test_pages(full, load, qtbot):
    qtbot.keyClick(full.view, Qt.Key.Key_End, Qt.KeyboardModifier.ControlModifier)
    assert full.where.text() == "Samples 1–100 of 250" and enabled(full) == ["Next", "Last"]
    go(full, qtbot, "Next")
    qtbot.waitUntil(lambda: full.where.text() == "Samples 101–200 of 250")
    assert cells(full, 0)["sample"] == "101" and full.view.selected_rows() == [0]
    assert full.sample._sample.index == 100 and enabled(full) == ["First", "Previous", "Next", "Last"]
    go(full, qtbot, "Last")
    qtbot.waitUntil(lambda: full.where.text() == "Samples 201–250 of 250")
    assert full.model.rowCount() == 50 and enabled(full) == ["First", "Previous"]
    go(full, qtbot, "Previous")
    qtbot.waitUntil(lambda: full.where.text() == "Samples 101–200 of 250")
    go(full, qtbot, "First")
    qtbot.waitUntil(lambda: full.where.text() == "Samples 1–100 of 250")
    assert load.asked == [0, 100, 200, 100, 0]


def test_turning_pages_with_the_keyboard_faster_than_they_are_read(full, load, qtbot):
    load.may_go_on.clear()
    following = full.buttons[2]
    following.setFocus()
    qtbot.keyClick(following, Qt.Key.Key_Space)
    qtbot.keyClick(following, Qt.Key.Key_Space)
    assert full.where.text() == "Reading 201–250 of 250"
    assert full.view.hasFocus()  # there is no next page, so that Next cannot keep it
    load.may_go_on.set()
    qtbot.waitUntil(lambda: full.where.text() == "Samples 201–250 of 250")
    assert cells(full, 0)["sample"] == "201"


def test_a_single_page_has_nowhere_to_go(tab, load, tmp_path, qtbot):
    writer = TokenSetWriter(tmp_path)
    writer.add(np.arange(2), np.array([0, 1]), 1)
    writer.close(kind="text", rows=1, skipped=0, truncated=0)
    load.first_sample = {
        "roles": (),
        "learnt": (False, True),
        "ids": (5, 6),
        "pieces": (Piece("a", False), Piece("\tb", True)),
    }
    source = SimpleNamespace(path=tmp_path)
    tab.show_data(SimpleNamespace(tokens=TokenSet.open(tmp_path), data_file=Path("one.jsonl"), source=source))
    qtbot.waitUntil(tab.page.isVisible)
    assert enabled(tab) == [] and tab.where.text() == "Samples 1–1 of 1"
    assert tab.facts.text() == "text · 1 sample of 1 row · 0 skipped · 0 cut · at most 2 tokens a sample"
    assert cells(tab, 0) == dict(zip(HEADINGS, ["1", "1", "–", "2", "1", "a b"], strict=True))
    tab.view.copy()
    assert QGuiApplication.clipboard().text() == "\t".join(HEADINGS) + "\n1\t1\t\t2\t1\ta b\n"


def test_data_for_a_hidden_tab_are_read_when_it_shows(tab, load, prepared, qtbot):
    tab.hide()
    tab.show_data(prepared)
    qtbot.wait(50)
    assert load.asked == []
    tab.show()
    qtbot.waitUntil(tab.page.isVisible)
    assert load.asked == [0]


def test_the_same_data_again_keep_the_page(full, load, prepared, qtbot):
    go(full, qtbot, "Next")
    qtbot.waitUntil(lambda: full.where.text() == "Samples 101–200 of 250")
    full.show_busy("Tokenising")
    assert full.busy.isVisible() and not full.page.isVisible()
    full.show_data(SimpleNamespace(**vars(prepared)))
    assert full.page.isVisible() and full.where.text() == "Samples 101–200 of 250" and load.asked == [0, 100]


def test_what_comes_too_late_is_not_shown(tab, load, prepared, qtbot):
    load.may_go_on.clear()
    tab.show_data(prepared)
    assert tab.busy.isVisible() and "Reading" in tab.busy_message.text()
    tab.show_busy(HTML)
    assert tab.busy_message.text() == HTML and tab.busy_message.textFormat() == Qt.TextFormat.PlainText
    load.may_go_on.set()
    qtbot.wait(100)
    assert tab.busy.isVisible() and tab.model.rowCount() == 0


def test_an_error_shows_the_message_and_the_line_and_nothing_else(full, tmp_path, qtbot):
    file = tmp_path / "broken, really.jsonl"
    file.write_text(f'{{"text": "fine"}}\n{{"text": "{HTML}" oops}}\n', encoding="utf-8")
    message = f"{file}, line 2: broken JSON at column 35; expected {HTML}."
    full.show_error(message)
    text = full.error.text
    assert full.error.isVisible() and text.toPlainText() == message
    qtbot.waitUntil(lambda: "oops" in text.toPlainText())
    assert text.toPlainText() == f'{message}\n\nLine 2 of the file:\n{{"text": "{HTML}" oops}}'
    assert not full.page.isVisible() and full.model.rowCount() == 0 and full.sample.text.toPlainText() == ""
    full.show_error("Something that is in no file.")
    assert text.toPlainText() == "Something that is in no file."
    qtbot.wait(50)
    assert text.toPlainText() == "Something that is in no file."


def test_samples_come_back_after_an_error(full, load, prepared, qtbot):
    load.error = DataError("/some/file has changed since it was tokenised.")
    go(full, qtbot, "Next")
    qtbot.waitUntil(full.error.isVisible)
    assert full.error.text.toPlainText() == str(load.error)
    load.error = None
    full.show_data(prepared)
    qtbot.waitUntil(full.page.isVisible)
    assert full.where.text() == "Samples 1–100 of 250" and full.view.selected_rows() == [0]


def test_a_sample_of_8192_tokens_shows_without_a_stall(tab, load, prepared, qtbot):
    """20 ms is a stall; what is measured is this process's own time, as machines may be busy."""
    runs = [Piece("word " * 64, bool(number % 2)) for number in range(128)]
    learnt = tuple(bool(number // 64 % 2) for number in range(8192))
    load.first_sample = {"ids": tuple(range(100_000, 108_192)), "learnt": learnt, "pieces": tuple(runs)}
    tab.show_data(prepared)
    qtbot.waitUntil(tab.page.isVisible)

    def seconds(work):
        start = time.process_time()
        work()
        QGuiApplication.processEvents()
        return time.process_time() - start

    def select_again():
        tab.view.selectRow(1)
        QGuiApplication.processEvents()
        return seconds(lambda: tab.view.selectRow(0))

    assert min(select_again() for _ in range(3)) < 3 * 0.020
    assert len(tab.sample.text.toPlainText()) == 8192 * 5 and len(highlighted(tab)) == 64
    tab.sample.as_ids.click()
    assert min(select_again() for _ in range(3)) < 3 * 0.020
    assert tab.sample.text.toPlainText().split() == [str(token) for token in range(100_000, 108_192)]


@pytest.mark.parametrize(("text", "characters"), [("x" * 1_000_000, 60_000), ("ab\n" * 100_000, 3 * 5000 - 1)])
def test_an_endless_sample_is_cut_and_does_not_stall(tab, load, prepared, qtbot, text, characters):
    """Nor does a word as long as that, in which Qt would look for a place to break it for two seconds."""
    load.first_sample = {"pieces": (Piece(text, True), Piece("y", False))}
    tab.show_data(prepared)
    qtbot.waitUntil(tab.page.isVisible)
    tab.view.selectRow(1)
    start = time.process_time()
    tab.view.selectRow(0)
    QGuiApplication.processEvents()
    assert time.process_time() - start < 0.5
    assert tab.sample.text.toPlainText() == text[:characters] + "\n… (only the beginning is shown)"
    assert len(cells(tab, 0)["text"]) == 200


def test_the_highlight_follows_the_appearance(full, qtbot):
    def tint():
        block = full.sample.text.document().findBlockByNumber(1)
        return block.begin().fragment().charFormat().background().color()

    try:
        set_appearance("light")
        qtbot.waitUntil(lambda: tint().lightness() > 128)
        set_appearance("dark")
        qtbot.waitUntil(lambda: tint().lightness() < 128)
    finally:
        set_appearance("light")


def test_closing_ends_all_threads(full, load, qtbot):
    load.may_go_on.clear()
    go(full, qtbot, "Next")
    qtbot.waitUntil(lambda: len(load.asked) == 2)
    tasks = [task for task in (full._reading._task, *full._reading._old) if isinstance(task, Task)]
    assert any(task.isRunning() for task in tasks)
    full.close_background()
    assert not any(task.isRunning() for task in tasks)


def test_closing_does_not_wait_for_a_file_that_hangs(qtbot, prepared, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(error_view, "raw_line", lambda file, line, report: hangs.wait(30))
    tab = DataTab(lambda *arguments, on_progress: hangs.wait(30))
    qtbot.addWidget(tab, before_close_func=lambda tab: hangs.set())
    tab.show()
    for show, latest in (
        (lambda: tab.show_data(prepared), tab._reading),
        (lambda: tab.show_error("/a/file.jsonl, line 2: broken."), tab.error._reading),
    ):
        show()
        (task,) = [latest._task]
        qtbot.waitUntil(task.isRunning)
        start = time.monotonic()
        tab.close_background()
        assert time.monotonic() - start < 2 and not task.isRunning()


def test_real_data_through_the_real_preview(qtbot, tmp_path):
    from mesp_core.runs.prepare import prepare
    from mesp_core.settings.run_config import preset

    file = tmp_path / "data.jsonl"
    rows = [[{"role": "user", "content": f"{HTML} {n}"}, {"role": "assistant", "content": f"answer {n}"}] for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tab = DataTab()
    qtbot.addWidget(tab, before_close_func=lambda tab: tab.close_background())
    tab.show()
    tab.show_data(prepare(preset("first-run", data=str(file), loss_on="completion")))
    qtbot.waitUntil(lambda: tab.page.isVisible() or tab.error.isVisible(), timeout=20_000)
    assert f"{HTML} 0" in tab.sample.text.toPlainText()
    assert "answer 0" in "".join(highlighted(tab)) and HTML not in "".join(highlighted(tab))
    assert cells(tab, 2)["roles"] == "user → assistant" and cells(tab, 2)["line"] == "3"


def test_finds_the_place_that_a_message_names():
    assert place_of("/a/b, line 12: broken JSON.") == (Path("/a/b"), 12)
    assert place_of("/m/tokenizer.json gives token id 9 for line 3 of /a/b.jsonl, but the model has") == (
        Path("/a/b.jsonl"),
        3,
    )
    assert place_of("seq_len: 0 is not a whole number.") is None


def test_reads_one_line_of_a_file_of_any_size(tmp_path):
    file = tmp_path / "file"
    lines = [
        b"\xef\xbb\xbffirst\r\n",
        b"\n",
        b"x" * 3_000_000 + b"\n",
        b"bad \xff byte\n",
        "ü".encode() * 5000 + b"\n",
        b"last",
    ]
    file.write_bytes(b"".join(lines))
    calls = []

    def line(number):
        return raw_line(file, number, lambda message, fraction: calls.append(message))

    assert line(1) == "first" and line(2) == "" and line(4) == "bad \ufffd byte" and line(6) == "last"
    assert calls and line(3).startswith("x" * MAX_BYTES + " … (") and line(5).startswith("ü" * (MAX_BYTES // 2) + " … (")
    assert line(7) is None and line(0) is None
    for name in (".", "none", "n" * 300):
        assert raw_line(tmp_path / name, 1, lambda *_: None) is None


def test_reading_a_line_can_be_cancelled(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x\n" * 2_000_000)

    def stop(message, fraction):
        raise KeyError

    with pytest.raises(KeyError):
        raw_line(file, 1_999_999, stop)
