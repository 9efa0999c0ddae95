"""The real window, driven as a person does, with the real worker on the bundled model."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import (
    QComboBox,
    QDialogButtonBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QTableView,
    QToolButton,
    QWidget,
)

from app.settings import Settings
from app.window import MainWindow
from mesp_core.config import RunConfig

LEFT = Qt.MouseButton.LeftButton
A_RUN_MS = 90_000


def children():
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def open_window(store, tmp_path, qtbot):
    """open_window() -> the window over the test's settings; whatever it runs is ended with the test."""
    windows = []

    def make(**parts):
        settings = Settings(store)
        settings.out_folder = tmp_path / "runs"
        window = MainWindow(settings, **parts)
        windows.append(window)  # not qtbot's: it would delete the window before this fixture can end the run
        window.show()
        window.after_show()
        return window

    yield make
    for window in windows:
        window.controller.kill()
        qtbot.waitUntil(lambda window=window: not window.controller.is_running, timeout=20_000)
        window.close()
        window.deleteLater()
    assert not children()


@pytest.fixture
def window(open_window):
    return open_window()


def part(window, kind, name):
    found = window.findChild(kind, name)
    assert found is not None, name
    return found


def type_into(window, name, text, qtbot):
    """Type into a field by its object name, combo box or line edit."""
    editor = part(window, QWidget, name)
    line = editor.lineEdit() if isinstance(editor, QComboBox) else editor
    line.setFocus()
    line.selectAll()
    qtbot.keyClicks(line, text)
    qtbot.keyClick(line, Qt.Key.Key_Tab)


def small(window, qtbot, steps=5):
    """Rank 4, 64 tokens, the bundled model and data."""
    type_into(window, "rank", "4", qtbot)
    type_into(window, "seq_len", "64", qtbot)
    type_into(window, "steps", str(steps), qtbot)


def press(window, name, qtbot):
    button = part(window, QToolButton, name)
    assert button.isEnabled()
    qtbot.mouseClick(button, LEFT)


def summary(window):
    """heading -> the column's texts."""
    model = window.view.summary_tab.findChild(QTableView).model()
    return {
        model.headerData(column, Qt.Orientation.Horizontal): [
            model.index(row, column).data() for row in range(model.rowCount())
        ]
        for column in range(model.columnCount())
    }


def press_button(parent, text, qtbot):
    (button,) = (button for button in parent.findChildren(QPushButton) if button.text().replace("&", "") == text)
    qtbot.mouseClick(button, LEFT)


def test_a_whole_comparison_and_its_exports(window, tmp_path, qtbot):
    small(window, qtbot)
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS) as ended:
        press(window, "tool_run", qtbot)
        assert not part(window, QToolButton, "tool_run").isEnabled()
    (end,) = ended.args
    assert not end.problem and not end.stopped
    qtbot.waitUntil(lambda: "mesp" in summary(window)["method"], timeout=2000)
    table = summary(window)
    assert table["method"][:2] == ["mebp", "mesp"]
    assert float(table["final loss"][0]) == pytest.approx(float(table["final loss"][1]), rel=1e-4)
    assert float(table["allocator peak, MB"][1]) < float(table["allocator peak, MB"][0])
    steps = window.view.steps_tab.findChild(QTableView).model()
    qtbot.waitUntil(lambda: steps.rowCount() == 10, timeout=2000)
    assert part(window, QLabel, "status").text() == "Finished"
    assert "peak" in part(window, QLabel, "footprint").text()
    stored = json.loads((end.out / "results.json").read_text())
    assert stored["config"]["rank"] == 4 and stored["config"]["seq_len"] == 64
    assert [len(method["steps"]) for method in stored["methods"].values()] == [5, 5]

    # the adapter, through its dialog, into mlx-lm
    press(window, "tool_export adapter", qtbot)
    dialog = part(window, QWidget, "adapter_dialog")
    dialog.findChild(QLineEdit, "adapter_folder").setText(str(tmp_path / "my adapter"))
    qtbot.mouseClick(dialog.findChild(QDialogButtonBox).button(QDialogButtonBox.StandardButton.Save), LEFT)
    assert str(tmp_path / "my adapter") in window.message_bar.text
    _assert_it_changes_the_model(tmp_path / "my adapter")

    # the results, through theirs, in every form
    for ending in ("json", "csv", "md", "png"):
        press(window, "tool_export results", qtbot)
        dialog = window.findChildren(QFileDialog)[-1]
        dialog.selectFile(str(tmp_path / f"out.{ending}"))
        dialog.accept()
    assert json.loads((tmp_path / "out.json").read_text())["methods"] == stored["methods"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 11
    assert (tmp_path / "out.md").read_text().count("\n") == 4
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def _assert_it_changes_the_model(adapter):
    """mlx-lm reads it, and it is no no-op."""
    import mlx.core as mx
    from mlx_lm import load

    from mesp_core.bundled import bundled_path

    ids = mx.array([[5, 17, 42, 99]])
    plain, _ = load(str(bundled_path("tiny")))
    trained, _ = load(str(bundled_path("tiny")), adapter_path=str(adapter))
    difference = mx.abs(plain(ids).astype(mx.float32) - trained(ids).astype(mx.float32)).max().item()
    assert difference > 1e-3


def test_interleaved_methods_take_turns_and_their_memory_is_added_up(window, qtbot):
    qtbot.keyClick(part(window, QWidget, "advanced"), Qt.Key.Key_Space)
    box = part(window, QWidget, "interleave")
    box.setFocus()
    qtbot.keyClick(box, Qt.Key.Key_Space)
    small(window, qtbot, steps=3)
    heard, workers = [], []
    window.controller.stepped.connect(lambda step: heard.append((step.method, step.step)))
    window.controller.stepped.connect(lambda step: workers.append(len(children())))
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS) as ended:
        press(window, "tool_run", qtbot)
    assert heard == [(method, step) for step in (1, 2, 3) for method in ("mebp", "mesp")]
    assert max(workers) == 2
    stored = json.loads((ended.args[0].out / "results.json").read_text())
    assert stored["config"]["interleave"] is True
    of_each = [max(sample["footprint_mb"] for sample in method["memory"]) for method in stored["methods"].values()]
    peak = float(re.search(r"peak ([\d,]+) MB", part(window, QLabel, "footprint").text())[1].replace(",", ""))
    assert peak > 1.2 * max(of_each)


def test_stop_keeps_what_was_done_and_offers_the_adapter(window, qtbot):
    small(window, qtbot, steps=500)
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        qtbot.keyClick(window, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    with qtbot.waitSignal(window.controller.ended, timeout=30_000) as ended:
        press(window, "tool_stop", qtbot)
        assert "Stopping" in part(window, QLabel, "status").text()
    (end,) = ended.args
    assert end.stopped and not end.problem
    assert list(end.methods) == ["mebp"] and 1 <= end.methods["mebp"].steps < 500
    assert (end.adapters["mebp"] / "adapters.safetensors").is_file()
    assert "mebp: stopped after" in window.message_bar.text
    press_button(window.message_bar, "Export Adapter…", qtbot)
    assert part(window, QWidget, "adapter_dialog").isVisible()
    assert part(window, QToolButton, "tool_run").isEnabled()


def test_a_killed_worker_is_a_message_and_the_other_method_goes_on(window, qtbot):
    small(window, qtbot, steps=15)
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    (worker,) = (child for child in children() if "mesp_core.worker" in " ".join(child.cmdline()))
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS) as ended:
        worker.send_signal(signal.SIGKILL)
        qtbot.waitUntil(lambda: "SIGKILL" in window.message_bar.text, timeout=10_000)
    (end,) = ended.args
    assert end.methods["mebp"].kind == "crashed" and end.methods["mesp"].kind == "finished"
    assert window.message_bar.level == "error" and "SIGKILL" in window.message_bar.text
    table = summary(window)
    assert table["method"][:2] == ["mebp", "mesp"] and table["final loss"][1] != "–"
    assert list(end.adapters) == ["mesp"]


def close_while_running(window, qtbot, answer):
    small(window, qtbot, steps=500)
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    window.close()
    assert window.isVisible()
    press_button(part(window, QMessageBox, "close_question"), answer, qtbot)


def test_closing_while_running_asks_stops_and_leaves_no_process(window, tmp_path, qtbot):
    close_while_running(window, qtbot, "Stop and Close")
    qtbot.waitUntil(lambda: not window.isVisible(), timeout=30_000)
    assert not children()
    assert list((tmp_path / "runs").glob("*/mebp/adapter/adapters.safetensors"))


def test_closing_while_running_can_end_it_at_once(window, qtbot):
    close_while_running(window, qtbot, "End Now")
    qtbot.waitUntil(lambda: not window.isVisible(), timeout=30_000)
    assert not children()


def test_closing_while_running_can_be_thought_better_of(window, qtbot):
    close_while_running(window, qtbot, "Keep Running")
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        pass
    assert window.isVisible() and window.controller.is_running


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


def visible_text(widget):
    labels = [label.text() for label in widget.findChildren(QLabel) if not label.isHidden()]
    views = [view.toPlainText() for view in widget.findChildren(QWidget) if hasattr(view, "toPlainText")]
    return "\n".join(labels + views)


def drop(window, *paths):
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    buttons, modifiers = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    window.dropEvent(QDropEvent(QPointF(50, 50), Qt.DropAction.CopyAction, mime, buttons, modifiers))


def test_a_model_folder_and_a_data_file_can_be_dropped(window, tiny_copy, tmp_path, qtbot):
    data = tmp_path / "mine.jsonl"
    data.write_text("\n".join(json.dumps({"text": "a few words to learn, again and again"}) for _ in range(9)))
    drop(window, tiny_copy, data)
    with qtbot.waitSignal(window.panel.prepared, timeout=20_000):
        pass
    experiment = window.panel.experiment()
    assert experiment.config.model == str(tiny_copy) and experiment.config.data == str(data)
    assert len(window.findChild(QWidget, "data").currentText()) > 0
    drop(window, tmp_path / "notes.txt")
    assert "neither a .jsonl data file nor a model folder" in window.message_bar.text


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

    first = run()
    assert run() <= first + 2
