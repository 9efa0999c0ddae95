"""The real window around its runs: wrong values, files, settings, menus, what goes wrong."""

import json
import os
import time
from pathlib import Path

import pytest
from PySide6.QtWidgets import (
    QFileDialog,
    QLabel,
    QWidget,
)
from window_driver import A_RUN_MS, children, drop, part, press, small, type_into, visible_text

from mesp_core.settings.run_config import RunConfig


def test_a_wrong_value_is_marked_and_run_says_why_not(window, qtbot):
    qtbot.waitUntil(lambda: window.actions_.run.isEnabled(), timeout=20_000)
    type_into(window, "rank", "0", qtbot)
    qtbot.waitUntil(lambda: not window.actions_.run.isEnabled(), timeout=2000)
    assert "whole number from 1" in part(window, QLabel, "error_rank").text()
    assert part(window, QLabel, "error_rank").isVisible()
    assert "ank" in window.actions_.run.toolTip()
    window.actions_.run.trigger()
    assert not window.controller.is_running
    type_into(window, "rank", "4", qtbot)
    qtbot.waitUntil(lambda: window.actions_.run.isEnabled(), timeout=20_000)
    assert not part(window, QLabel, "error_rank").isVisible()


def test_a_length_beyond_the_models_is_refused(window, qtbot):
    qtbot.waitUntil(lambda: window.actions_.run.isEnabled(), timeout=20_000)
    type_into(window, "seq_len", "1000000", qtbot)
    qtbot.waitUntil(lambda: not window.actions_.run.isEnabled(), timeout=5000)
    assert "allows up to" in part(window, QLabel, "error_seq_len").text()


def test_a_broken_data_file_shows_line_and_reason(window, tmp_path, qtbot):
    broken = tmp_path / "mine.jsonl"
    rows = [json.dumps({"text": "good"})] * 6 + ['{"text": "unfinis']
    broken.write_text("\n".join(rows))
    drop(window, broken)
    qtbot.waitUntil(lambda: not window.actions_.run.isEnabled(), timeout=20_000)
    qtbot.waitUntil(lambda: "line 7" in window.actions_.run.toolTip(), timeout=20_000)
    assert "line 7" in visible_text(window.view.data_tab) and "broken JSON" in visible_text(window.view.data_tab)


def test_a_model_folder_and_a_data_file_can_be_dropped(window, tiny_copy, tmp_path, qtbot):
    data = tmp_path / "mine.jsonl"
    data.write_text("\n".join(json.dumps({"text": "a few words to learn, again and again"}) for _ in range(9)))
    drop(window, tiny_copy, data)
    with qtbot.waitSignal(window.panel.prepared, timeout=20_000):
        pass
    experiment = window.panel.experiment()
    assert experiment.config.model == str(tiny_copy) and experiment.config.data == str(data)
    assert window.findChild(QWidget, "data").currentText() == str(data)
    drop(window, tmp_path / "notes.txt")
    assert "neither a .jsonl data file nor of a model folder" in window.message_bar.text


def test_open_dialog_takes_any_file_of_a_model(window, tiny_copy, qtbot):
    window.actions_.open.trigger()
    dialog = part(window, QFileDialog, "open_dialog")
    dialog.selectFile(str(tiny_copy / "config.json"))
    dialog.accept()
    qtbot.waitUntil(lambda: window.panel.experiment() and window.panel.experiment().config.model == str(tiny_copy))


def test_settings_and_the_last_experiment_survive_a_restart(open_window, store, qtbot):
    window = open_window()
    window.resize(790, 700)  # within the offscreen screen
    small(window, qtbot, steps=7)
    before = window.panel.experiment()
    assert before.config.steps == 7
    window.close()
    again = open_window()
    assert again.panel.experiment() == before
    assert (again.width(), again.height()) == (790, 700)


def test_nothing_of_a_broken_settings_file_keeps_the_window_from_opening(open_window, store):
    store.setValue("experiment", '{"config": {"model": 5}}')
    store.setValue("layout/window", "nonsense")
    store.setValue("recent_models", "nonsense")
    window = open_window()
    assert window.panel.experiment().config.replace(method="mebp") == RunConfig(method="mebp")


def test_a_defect_is_told_and_the_window_lives_on(window):
    window.report_unexpected(ZeroDivisionError("nought"))
    assert "Unexpected ZeroDivisionError: nought" in window.message_bar.text
    assert "ZeroDivisionError" in visible_text(window.view.log_tab)


def test_text_size_and_appearance_apply_at_once(window, qtbot):
    before = part(window, QLabel, "footprint").font().pointSizeF()
    window.settings.text_size = 150
    window.settings.appearance = "dark"
    window.apply_settings()
    footprint = part(window, QLabel, "footprint")
    qtbot.waitUntil(lambda: footprint.font().pointSizeF() == pytest.approx(1.5 * before), timeout=1000)
    assert window.palette().window().color().lightness() < 100


def test_results_of_a_run_that_cannot_be_written_are_a_message(window, tmp_path, qtbot):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    window.settings.out_folder = blocked
    small(window, qtbot)
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    assert "cannot be written to" in window.message_bar.text
    assert not children()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks into /proc")
def test_no_descriptor_is_left_open(window, qtbot):
    small(window, qtbot, steps=1)

    def run():
        with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS):
            press(window, "tool_run", qtbot)
        time.sleep(0.2)
        return len(list(Path("/proc/self/fd").iterdir()))

    run()
    second = run()
    assert run() <= second + 2
