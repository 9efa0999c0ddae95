"""Files that hang, change, vanish, have impossible names, or are dropped where text is typed."""

import os
import shutil
import threading
import time

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QVBoxLayout, QWidget

from app.experiment.facts import find as find_model
from app.experiment.model_field import ModelField
from mesp_core.runs.prepare import prepare

SOON_S = 2.0  # the wait that a person takes for none, and room for a busy machine


def rows(count):
    return "".join(f'{{"text": "row number {number} of {count}"}}\n' for number in range(count))


@pytest.fixture
def file(tmp_path):
    """A data file of one row."""
    file = tmp_path / "mine.jsonl"
    file.write_text(rows(1))
    return file


@pytest.fixture
def on_mine(panel, qtbot, file, find):
    """A panel that has read `file`."""
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: find(panel, "data_status").text() == "1 sample")
    return panel


@pytest.fixture
def dead_mount(tmp_path):
    """A data file that cannot even be opened: whoever tries waits until the test is over."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    yield pipe
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def count_calls(calls):
    def counted(config, report):
        calls.append(config)
        return prepare(config, report)

    return counted


# --- that hang


def tasks_of(latest):
    return [task for task in (latest._task, *latest._old) if task is not None]


@pytest.mark.parametrize("whole", [True, False])
def test_closing_does_not_wait_for_a_file_that_hangs(make_panel, qtbot, dead_mount, type_into, hear, whole):
    panel = make_panel()
    if not whole:
        type_into(panel, "seq_len", "0")  # then only the first row is read
    panel.set_data(str(dead_mount))
    latest = panel._preparation._latest
    qtbot.waitUntil(lambda: latest.busy)
    qtbot.wait(100)
    tasks, start = tasks_of(latest), time.monotonic()
    assert any(task.isRunning() for task in tasks)
    panel.close_background()
    assert time.monotonic() - start < SOON_S
    assert not any(task.isRunning() for task in tasks)


def test_closing_does_not_wait_for_a_large_file(make_panel, qtbot, tmp_path):
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(12 << 30)  # sparse: takes no room
    panel = make_panel()
    said = []
    panel.preparing.connect(said.append)
    panel.set_data(str(large))
    qtbot.waitUntil(lambda: "Reading large.jsonl" in said)
    tasks, start = tasks_of(panel._preparation._latest), time.monotonic()
    panel.close_background()
    assert time.monotonic() - start < SOON_S
    assert not any(task.isRunning() for task in tasks)


def test_another_file_is_read_though_one_hangs(panel, qtbot, dead_mount, file, find):
    panel.set_data(str(dead_mount))
    qtbot.waitUntil(lambda: panel._preparation._latest.busy)
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: find(panel, "data_status").text() == "1 sample")


def test_closing_does_not_wait_for_a_download_that_hangs(make_panel, qtbot, find, click):
    hangs = threading.Event()
    look = lambda model: find_model("tiny") if model == "tiny" else None  # noqa: E731
    panel = make_panel(ModelField(list_cached=list, find=look, fetch=lambda model, report: hangs.wait(30)))
    panel.set_model("org/model")
    qtbot.waitUntil(lambda: find(panel, "fetch").isVisible())
    click(find(panel, "fetch"))
    start = time.monotonic()
    panel.close_background()
    assert time.monotonic() - start < SOON_S
    hangs.set()


# --- that change


def choose_by_call(panel, qtbot, find, file):
    panel.set_data(str(file))


def choose_by_dialog(panel, qtbot, find, file):
    qtbot.mouseClick(find(panel, "open_data"), Qt.MouseButton.LeftButton)
    dialog = panel.findChild(QFileDialog, "open_data_dialog")
    dialog.findChild(QLineEdit, "fileNameEdit").setText(str(file))
    dialog.accept()


def choose_from_list(panel, qtbot, find, file):
    box = find(panel, "data")
    box.showPopup()
    assert box.view().currentIndex().data() == str(file)
    qtbot.keyClick(box.view(), Qt.Key.Key_Return)


def choose_by_enter(panel, qtbot, find, file):
    qtbot.keyClick(find(panel, "data"), Qt.Key.Key_Return)


@pytest.mark.parametrize(
    "choose", [choose_by_call, choose_by_dialog, choose_from_list, choose_by_enter], ids=lambda choose: choose.__name__
)
def test_a_file_chosen_again_is_read_again(on_mine, qtbot, find, file, choose):
    file.write_text(rows(3))
    again = []
    on_mine._data.box.again.connect(lambda: again.append(True))
    choose(on_mine, qtbot, find, file)
    qtbot.waitUntil(lambda: find(on_mine, "data_status").text() == "3 samples")
    assert on_mine.heard.now == "prepared" and len(on_mine.heard.data[-1][1].tokens) == 3
    assert again == [True]


def test_leaving_the_field_reads_nothing_again(make_panel, qtbot, find, hear, file):
    calls = []
    panel = make_panel(prepare=count_calls(calls))
    qtbot.waitUntil(panel.isActiveWindow)
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: find(panel, "data_status").text() == "1 sample")
    before = len(calls)
    find(panel, "data").setFocus()
    find(panel, "rank").setFocus()
    qtbot.wait(100)
    assert len(calls) == before


def test_a_model_chosen_again_is_looked_up_again(panel, qtbot, tiny_copy, find, error_of):
    panel.set_model(str(tiny_copy))
    qtbot.waitUntil(lambda: panel.heard.now == "prepared" and "4 layers" in find(panel, "model_facts").text())
    (tiny_copy / "config.json").write_text("{}")
    panel.set_model(str(tiny_copy))
    qtbot.waitUntil(lambda: "model_type None" in error_of(panel, "model"))
    assert find(panel, "model_facts").text() == "" and panel.experiment() is None


def test_the_first_look_is_the_only_one(make_panel, qtbot, hear):
    looked = []
    model = ModelField(list_cached=list, find=lambda model: looked.append(model) or find_model(model))
    panel = make_panel(model, before_shown=lambda panel: panel.set_model("tiny"))
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert looked == ["tiny"]


# --- what a run has read itself


def test_what_a_run_has_prepared_is_shown_while_it_goes_on_and_after(make_panel, qtbot, find, file, hear):
    calls = []
    panel = make_panel(prepare=count_calls(calls))
    heard = hear(panel)
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: find(panel, "data_status").text() == "1 sample")
    file.write_text(rows(4))
    config = panel.experiment().config
    panel.set_running(True)
    of_run = prepare(config)
    panel.adopt(of_run)
    assert find(panel, "data_status").text() == "4 samples" and heard.data[-1] == ("prepared", of_run)
    before = len(calls)
    panel.set_running(False)
    qtbot.wait(100)
    assert len(calls) == before and heard.data[-1] == ("prepared", of_run)
    assert find(panel, "data_status").text() == "4 samples" and panel.experiment().config == config


def test_the_same_tokens_are_told_once(on_mine):
    config, before = on_mine.experiment().config, list(on_mine.heard.data)
    on_mine.set_running(True)
    on_mine.adopt(prepare(config))
    on_mine.set_running(False)
    assert on_mine.heard.data == before


def test_a_run_that_began_before_the_data_was_read_shows_it(make_panel, qtbot, find, hear):
    panel = make_panel(quiet_ms=60_000)
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "preparing")
    config = panel.experiment().config
    panel.set_running(True)
    panel.adopt(prepare(config))
    assert find(panel, "data_status").text().startswith("262 samples")
    assert [name for name, _ in heard.data] == ["preparing", "prepared"]


def test_what_a_run_has_prepared_stays_though_the_model_is_found_meanwhile(make_panel, qtbot, find, hear):
    calls, found = [], threading.Event()

    def look(model):
        assert found.wait(5)
        return find_model(model)

    panel = make_panel(ModelField(list_cached=list, find=look), prepare=count_calls(calls))
    heard = hear(panel)
    config = panel.experiment().config
    panel.set_running(True)
    panel.adopt(prepare(config))
    found.set()
    qtbot.waitUntil(lambda: "4 layers" in find(panel, "model_facts").text())
    assert heard.now == "prepared" and find(panel, "data_status").text().startswith("262 samples")
    panel.set_running(False)
    qtbot.wait(100)
    assert heard.now == "prepared" and not calls


# --- that vanish


def test_after_a_run_has_failed_what_is_there_is_looked_at_again(on_mine, qtbot, tiny_copy, find, error_of, file):
    panel = on_mine
    panel.set_model(str(tiny_copy))
    qtbot.waitUntil(lambda: panel.heard.now == "prepared" and "4 layers" in find(panel, "model_facts").text())
    shutil.rmtree(tiny_copy)
    panel.set_running(True)
    panel.set_running(False)
    panel.look_again()
    qtbot.waitUntil(lambda: error_of(panel, "model") != "")
    assert "there is no folder" in error_of(panel, "model") and find(panel, "model_facts").text() == ""
    assert panel.heard.ready[-1].startswith("Model: ") and panel.experiment() is None

    panel.set_model("tiny")
    qtbot.waitUntil(lambda: panel.heard.now == "prepared")
    file.unlink()
    panel.look_again()
    qtbot.waitUntil(lambda: "does not exist" in error_of(panel, "data"))
    file.write_text(rows(2))
    panel.look_again()
    qtbot.waitUntil(lambda: find(panel, "data_status").text() == "2 samples")
    assert panel.experiment() is not None


# --- whose names cannot be


@pytest.mark.parametrize("name", ["~no-such-person/x.jsonl", "/" + "n" * 300 + "/x.jsonl", "n" * 5000, "/a\0b.jsonl"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_name_that_cannot_be_names_a_file_that_does_not_exist(panel, qtbot, find, type_into, error_of, name, whole):
    if not whole:
        type_into(panel, "seq_len", "0")
    panel.set_data(name)
    qtbot.waitUntil(lambda: error_of(panel, "data") != "")
    assert "does not exist; check the path" in error_of(panel, "data")
    qtbot.mouseClick(find(panel, "open_data"), Qt.MouseButton.LeftButton)
    dialog = panel.findChild(QFileDialog, "open_data_dialog")
    assert dialog.isVisible()
    dialog.reject()


# --- that are dropped


class Window(QWidget):
    """Takes what is dropped anywhere on it."""

    def __init__(self, panel):
        super().__init__()
        self.setAcceptDrops(True)
        self.dropped = []
        QVBoxLayout(self).addWidget(panel)

    def dragEnterEvent(self, event):
        event.acceptProposedAction()

    def dropEvent(self, event):
        self.dropped.append(event.mimeData().urls()[0].toLocalFile())


def test_a_file_dropped_on_any_field_reaches_the_window(panel, qtbot, find, click):
    window = Window(panel)
    qtbot.addWidget(window)
    window.show()
    click(find(panel, "advanced"))
    files = QMimeData()
    files.setUrls([QUrl.fromLocalFile("/data/mine.jsonl")])
    files.setText("/data/mine.jsonl")
    action, left, none = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    lines = [line for line in panel.findChildren(QLineEdit) if line.isVisible()]
    assert len(lines) > 10
    for line in lines:
        before = line.text()
        QApplication.sendEvent(line, QDragEnterEvent(QPoint(5, 5), action, files, left, none))
        QApplication.sendEvent(line, QDropEvent(QPointF(5, 5), action, files, left, none))
        assert line.text() == before, line.objectName() or line.parent().objectName()
        assert window.dropped.pop() == "/data/mine.jsonl"
    panel.setParent(None)
