"""What the panel prepares, when, off which thread, and at which field it says what went wrong."""

import json
import os
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QScrollArea

from app.experiment.data_field import DataField
from app.experiment.facts import find as find_model
from app.experiment.model_field import ModelField
from app.widgets.theme import set_appearance
from mesp_core.runs.prepare import prepare

ROOT = Path(__file__).resolve().parents[3]


# --- data


def count_calls(calls):
    def counted(config, report):
        calls.append(config)
        return prepare(config, report)

    return counted


def test_only_what_decides_tokens_is_prepared_anew(make_panel, qtbot, type_into, hear):
    calls = []
    panel = make_panel(prepare=count_calls(calls))
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert len(calls) == 1
    for name, text in {"rank": "4", "learning_rate": "0.1", "steps": "3", "batch_size": "2"}.items():
        type_into(panel, name, text)
    qtbot.wait(100)
    assert len(calls) == 1 and heard.now == "prepared"
    type_into(panel, "seq_len", "64")
    assert heard.now == "preparing"
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert calls[-1].seq_len == 64 and max(heard.data[-1][1].tokens.length(i) for i in range(262)) == 65


def test_it_waits_until_the_typing_is_over(make_panel, qtbot, type_into, hear):
    calls = []
    panel = make_panel(prepare=count_calls(calls), quiet_ms=400)
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "prepared")
    type_into(panel, "seq_len", "256")  # 2, 25 and 256 are all right
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert [config.seq_len for config in calls] == [128, 256]


def test_more_samples_in_a_batch_than_there_are_is_marked_there(panel, type_into, error_of):
    type_into(panel, "batch_size", "300")
    assert "gives 262 samples, fewer than a batch of 300" in error_of(panel, "batch_size")
    assert panel.experiment() is None and panel.heard.now == "prepared"


def test_a_broken_file_is_marked_with_line_and_reason(panel, qtbot, tmp_path, error_of):
    file = tmp_path / "broken.jsonl"
    file.write_text('{"text": "fine"}\n{"text": 3}\n')
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: panel.heard.now == "unprepared")
    assert f'{file}, line 2: "text" is 3; expected a string.' == error_of(panel, "data") == panel.heard.data[-1][1]
    assert panel.experiment() is None
    assert panel.heard.ready[-1] == f"Data: {error_of(panel, 'data')}"
    panel.set_data("sample")
    qtbot.waitUntil(lambda: panel.heard.now == "prepared")
    assert error_of(panel, "data") == "" and panel.heard.ready[-1] == ""


def test_enter_reads_a_mended_file_again(panel, qtbot, tmp_path, find):
    file = tmp_path / "mine.jsonl"
    file.write_text("no json\n")
    panel.set_data(str(file))
    qtbot.waitUntil(lambda: panel.heard.now == "unprepared")
    file.write_text('{"text": "now it is fine"}\n')
    qtbot.keyClick(find(panel, "data"), Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: panel.heard.now == "prepared")
    assert find(panel, "data_status").text() == "1 sample"


def test_a_missing_file_is_known_though_another_field_is_wrong_too(panel, qtbot, type_into, error_of):
    type_into(panel, "seq_len", "0")
    panel.set_data("/no/such/file.jsonl")
    qtbot.waitUntil(lambda: "does not exist" in error_of(panel, "data"))
    assert error_of(panel, "seq_len")


def test_loss_on_completions_of_plain_text_is_marked_there(panel, qtbot, tmp_path, find, error_of, choose):
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "plain text has no completion"}\n')
    panel.set_data(str(file))
    choose(find(panel, "loss_on"), "Completions")
    qtbot.waitUntil(lambda: "needs rows with a completion" in error_of(panel, "loss_on"))
    assert find(panel, "loss_on").isVisible()


def test_prompts_longer_than_the_length_are_marked_at_the_length(panel, qtbot, tmp_path, type_into, find, error_of, choose):
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "many words " * 50, "completion": "yes"}) + "\n")
    panel.set_data(str(file))
    choose(find(panel, "loss_on"), "Completions")
    type_into(panel, "seq_len", "8")
    qtbot.waitUntil(lambda: "the prompts are longer" in error_of(panel, "seq_len"))


def test_a_model_without_tokenizer_is_marked_at_the_model(panel, qtbot, tiny_copy, error_of):
    (tiny_copy / "tokenizer.json").unlink()
    panel.set_model(str(tiny_copy))
    qtbot.waitUntil(lambda: "tokenizer.json does not exist" in error_of(panel, "model"))
    assert panel.experiment() is None


def test_a_model_still_to_be_fetched_can_be_run(make_panel, qtbot, tmp_path, error_of, find, hear):
    asked = []
    model = ModelField(
        list_cached=list,
        find=lambda name: None if name == "org/model" else find_model(name),
        fetch=lambda *arguments: asked.append(arguments),
    )
    panel = make_panel(model)
    heard = hear(panel)
    panel.set_model("org/model")
    qtbot.waitUntil(lambda: heard.now == "unprepared")
    assert "once the model" in heard.data[-1][1]
    assert panel.experiment().config.model == "org/model" and heard.ready[-1] == "" and not asked
    panel.set_data(str(tmp_path / "nowhere.jsonl"))  # is known all the same
    qtbot.waitUntil(lambda: "does not exist" in error_of(panel, "data"))
    assert panel.experiment() is None


def test_a_run_must_wait_for_wikitext(make_panel, qtbot, monkeypatch, tmp_path, find, hear):
    cache = Path(os.environ["MESP_CACHE_DIR"])
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    go_on = threading.Event()

    def build(file):
        assert go_on.wait(5)
        file.parent.mkdir()
        file.write_text('{"text": "a passage of words"}\n')

    data = DataField(build_wikitext2=build)
    monkeypatch.setenv("MESP_CACHE_DIR", str(cache))
    panel = make_panel(data=data)
    heard = hear(panel)
    panel.set_data(str(tmp_path / "data" / "wikitext2.jsonl"))
    assert panel.experiment() is None
    assert heard.ready[-1].startswith("Data: Fetching WikiText-2") and heard.now == "preparing"
    assert find(panel, "data_status").text().startswith("Fetching WikiText-2")
    go_on.set()
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert heard.ready[-1] == "" and len(heard.data[-1][1].tokens) == 1


def test_nothing_is_looked_up_or_read_on_the_main_thread(make_panel, qtbot, hear):
    threads = set()

    def note(work):
        return lambda *arguments: threads.add(threading.current_thread()) or work(*arguments)

    panel = make_panel(ModelField(list_cached=note(list), find=note(find_model), fetch=None), prepare=note(prepare))
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert threads and threading.main_thread() not in threads


def test_a_typed_model_counts_when_run_is_pressed_before_enter(panel, tiny_copy, type_into):
    type_into(panel, "model", str(tiny_copy))
    assert panel.experiment().config.model == str(tiny_copy)


# --- while a run goes on


def test_while_running_nothing_can_be_changed_or_prepared(make_panel, qtbot, find, type_into, hear):
    calls = []
    panel = make_panel(prepare=count_calls(calls), quiet_ms=150)
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "preparing")
    panel.set_running(True)
    qtbot.wait(250)
    assert not calls
    type_into(panel, "rank", "4")
    assert panel.experiment().config.rank == 8
    area = panel.findChild(QScrollArea)
    assert area.isEnabled() and area.verticalScrollBar().isEnabled()
    panel.set_running(False)
    qtbot.waitUntil(lambda: heard.now == "prepared")
    assert len(calls) == 1
    panel.set_running(True)
    panel.set_running(False)
    qtbot.wait(250)
    assert len(calls) == 1  # what was prepared still is
    type_into(panel, "rank", "4")
    assert panel.experiment().config.rank == 4


@pytest.mark.parametrize("appearance", ["light", "dark"])
def test_what_is_running_can_be_read(make_panel, qtbot, find, appearance):
    try:
        set_appearance(appearance)
        panel = make_panel()
        panel.set_running(True)
        qtbot.wait(1)
        palette = find(panel, "steps").palette()
        text = palette.color(QPalette.ColorGroup.Disabled, QPalette.ColorRole.Text).lightness()
        ground = palette.color(QPalette.ColorGroup.Disabled, QPalette.ColorRole.Window).lightness()
        assert abs(text - ground) > 90
    finally:
        set_appearance("system")


def test_a_run_ends_a_download_and_then_looks_again(make_panel, qtbot, find, click):
    here, ended = [], threading.Event()

    def fetch(model, report):
        try:
            while True:
                report("Downloading", 0.5)
                ended.wait(0.01)
        finally:
            ended.set()

    look = lambda model: find_model("tiny") if here or model == "tiny" else None  # noqa: E731
    panel = make_panel(ModelField(list_cached=list, find=look, fetch=fetch))
    panel.set_model("org/model")
    qtbot.waitUntil(lambda: find(panel, "fetch").isVisible())
    click(find(panel, "fetch"))
    panel.set_running(True)
    qtbot.waitUntil(ended.is_set)
    here.append(True)
    panel.set_running(False)
    qtbot.waitUntil(lambda: "layers" in find(panel, "model_facts").text())
