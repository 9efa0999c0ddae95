"""Choosing a model, learning what it is, and fetching it."""

import json
import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QLineEdit

from app.experiment.facts import facts
from app.experiment.facts import find as find_model
from app.threads.patient import Cancelled
from app.widgets.plain import plain_tooltip
from mesp_core.errors import MespError
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.synthetic import GEOMETRIES

HUB = "org/some-model"


def items(box):
    return [box.itemText(i) for i in range(box.count()) if box.itemText(i)]


def enter(qtbot, field, text):
    line = field.box.lineEdit()
    line.selectAll()
    qtbot.keyClicks(line, text)
    qtbot.keyClick(field.box, Qt.Key.Key_Return)


def elsewhere(model):
    """A hub model that is not on this machine."""
    return None if model == HUB else find_model(model)


def test_the_bundled_model_tells_its_facts(make_model, qtbot, find):
    field = make_model()
    assert field.value() == "tiny"
    with qtbot.waitSignal(field.looked):
        field.look()
    qtbot.waitUntil(lambda: field.found is not None)
    assert find(field, "model_facts").text() == (
        "qwen2, 4 layers · 3.67 million parameters\n4-bit, groups of 64 · 2.0 MB on disk\nContext of 1,024 tokens"
    )
    assert not find(field, "model_warning").isVisible()


def test_a_model_that_does_not_say_how_long_its_context_is(tiny_copy):
    config_file = tiny_copy / "config.json"
    values = json.loads(config_file.read_text())
    config_file.write_text(json.dumps(values | {"max_position_embeddings": None}))
    assert facts(open_checkpoint(tiny_copy)).endswith("Context of unknown length")


def test_the_list_has_bundled_cached_recent_and_synthetic_models_each_once(make_model, qtbot):
    field = make_model(["/models/mine", "tiny", "org/b"], list_cached=lambda: ["org/a", "org/b"])
    qtbot.waitUntil(lambda: "org/a" in items(field.box))
    synthetic = [f"synthetic:{name}" for name in GEOMETRIES]
    assert items(field.box) == ["Tiny (bundled)", "org/a", "org/b", "/models/mine", *synthetic]
    assert field.value() == "tiny"


def test_the_list_is_made_off_the_main_thread(make_model, qtbot):
    threads = []
    make_model(list_cached=lambda: threads.append(threading.current_thread()) or [])
    qtbot.waitUntil(lambda: threads != [])
    assert threads[0] is not threading.main_thread()


def test_a_typed_folder_counts_once_enter_is_pressed(make_model, qtbot, tiny_copy):
    field = make_model()
    line = field.box.lineEdit()
    line.selectAll()
    with qtbot.assertNotEmitted(field.changed):
        qtbot.keyClicks(line, str(tiny_copy))
    with qtbot.waitSignal(field.changed):
        qtbot.keyClick(field.box, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: field.found is not None)
    assert field.found.source.path == tiny_copy
    assert str(tiny_copy) in items(field.box)  # can be picked again
    assert line.toolTip() == plain_tooltip(str(tiny_copy))


def test_nothing_is_completed_by_itself(make_model, qtbot):
    field = make_model(["/models/mine"])
    enter(qtbot, field, "/models")
    assert field.value() == "/models"


@pytest.mark.parametrize("text", ["/no/such/folder", "a b c", "https://example.org/x", "synthetic:gpt-9"])
def test_what_cannot_be_a_model_is_marked_with_the_cores_message(make_model, qtbot, find, text):
    field = make_model()
    enter(qtbot, field, text)
    qtbot.waitUntil(lambda: field.problem != "")
    with pytest.raises(MespError) as core:
        find_model(text)
    assert find(field, "error_model").text() == field.problem == str(core.value)
    assert field.found is None and not field.missing


def test_a_damaged_checkpoint_is_marked(make_model, qtbot, tiny_copy, find):
    (tiny_copy / "config.json").write_text("{}")
    field = make_model()
    field.set_value(str(tiny_copy))
    qtbot.waitUntil(lambda: field.problem != "")
    assert "model_type None is not supported" in find(field, "error_model").text()


def test_a_path_is_never_read_as_rich_text(make_model, qtbot, tmp_path, find):
    name = "<b>bold<img src=x>"
    field = make_model()
    field.set_value(str(tmp_path / name))
    qtbot.waitUntil(lambda: field.problem != "")
    label = find(field, "error_model")
    assert label.textFormat() == Qt.TextFormat.PlainText and name in label.text()
    assert "<b>" not in field.box.lineEdit().toolTip() and "&lt;b&gt;" in field.box.lineEdit().toolTip()


def test_the_folder_dialog_does_not_block_and_its_choice_counts(make_model, qtbot, tiny_copy, find):
    field = make_model()
    qtbot.mouseClick(find(field, "open_model"), Qt.MouseButton.LeftButton)
    dialog = field.findChild(QFileDialog, "open_model_dialog")
    assert dialog.isVisible()
    dialog.findChild(QLineEdit, "fileNameEdit").setText(str(tiny_copy))
    dialog.accept()
    assert field.value() == str(tiny_copy)
    qtbot.waitUntil(lambda: field.found is not None)


def test_a_hub_model_is_downloaded_on_a_click_with_progress(make_model, qtbot, find, tiny_copy):
    here, go_on, asked = [], threading.Event(), []

    def look(model):
        return replace(find_model("tiny"), source=replace(find_model("tiny").source, name=model)) if here else None

    def fetch(model, report):
        asked.append((model, threading.current_thread()))
        report("Downloading: 1 of 4 MB", 0.25)
        assert go_on.wait(5)
        here.append(model)

    field = make_model(find=look, fetch=fetch)
    enter(qtbot, field, HUB)
    qtbot.waitUntil(lambda: field.missing)
    button = find(field, "fetch")
    assert button.isVisible() and button.text() == "Download"
    assert "Not on this machine yet" in find(field, "fetch_says").text()
    assert field.problem == "" and not asked  # nothing is fetched unasked
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    bar = find(field, "fetch_progress")
    qtbot.waitUntil(lambda: bar.value() == 250)
    assert bar.isVisible() and not button.isVisible()
    assert find(field, "fetch_says").text() == "Downloading: 1 of 4 MB"
    go_on.set()
    qtbot.waitUntil(lambda: field.found is not None)
    assert not find(field, "fetch_bar").isVisible()
    assert asked[0][0] == HUB and asked[0][1] is not threading.main_thread()


def endless(cancelled):
    """A download that goes on until it is given up, which it notes in the event."""

    def fetch(model, report):
        try:
            while True:
                report("Downloading", 0.5)
                cancelled.wait(0.01)
        except Cancelled:
            cancelled.set()
            raise

    return fetch


def test_a_download_can_be_cancelled(make_model, qtbot, find):
    ended = threading.Event()
    field = make_model(find=elsewhere, fetch=endless(ended))
    enter(qtbot, field, HUB)
    qtbot.waitUntil(lambda: field.missing)
    qtbot.mouseClick(find(field, "fetch"), Qt.MouseButton.LeftButton)
    qtbot.mouseClick(find(field, "cancel_fetch"), Qt.MouseButton.LeftButton)
    assert find(field, "fetch").isVisible() and not find(field, "fetch_progress").isVisible()
    qtbot.waitUntil(ended.is_set)


def test_another_model_gives_up_a_download(make_model, qtbot, find):
    cancelled = threading.Event()
    field = make_model(find=elsewhere, fetch=endless(cancelled))
    enter(qtbot, field, HUB)
    qtbot.waitUntil(lambda: field.missing)
    qtbot.mouseClick(find(field, "fetch"), Qt.MouseButton.LeftButton)
    enter(qtbot, field, "tiny")
    qtbot.waitUntil(lambda: field.found is not None and cancelled.is_set())
    assert not find(field, "fetch_bar").isVisible()


def test_a_failed_download_says_why_and_can_be_tried_again(make_model, qtbot, find):
    def fetch(model, report):
        raise MespError("The hub cannot be reached.")

    field = make_model(find=elsewhere, fetch=fetch)
    enter(qtbot, field, HUB)
    qtbot.waitUntil(lambda: field.missing)
    qtbot.mouseClick(find(field, "fetch"), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: field.problem != "")
    assert find(field, "error_model").text() == "The hub cannot be reached."
    assert find(field, "fetch").isVisible()


def test_a_synthetic_model_is_created_on_a_click_and_warns(make_model, qtbot, find, monkeypatch, tmp_path):
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    geometry = GEOMETRIES["qwen2.5-0.5b"] | small | {"vocab_size": 2048}
    monkeypatch.setitem(GEOMETRIES, "qwen2.5-0.5b", geometry)
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    from mesp_core.models.source import resolve

    field = make_model(fetch=resolve)
    field.set_value("synthetic:qwen2.5-0.5b")
    qtbot.waitUntil(lambda: field.missing)
    assert find(field, "fetch").text() == "Create"
    qtbot.mouseClick(find(field, "fetch"), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: field.found is not None)
    assert "random weights" in find(field, "model_warning").text()


def test_the_newest_choice_wins(make_model, qtbot):
    slow = threading.Event()

    def look(model):
        if model == "/slow":
            slow.wait(5)
            raise MespError("too late")
        return find_model(model)

    field = make_model(find=look)
    field.set_value("/slow")
    field.set_value("tiny")
    qtbot.waitUntil(lambda: field.found is not None)
    slow.set()
    qtbot.wait(100)
    assert field.problem == "" and field.found is not None
