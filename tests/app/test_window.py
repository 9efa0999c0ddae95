"""The real window, driven as a person does, with the real worker on the bundled model."""

import json
import re
import signal
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QApplication,
    QDialogButtonBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QMessageBox,
    QTableView,
    QToolButton,
    QWidget,
)
from window_driver import A_RUN_MS, LEFT, children, drop, part, press, press_button, small, summary, type_into

from app.experiment.experiment import Experiment
from app.run.controller import RunController
from mesp_core.settings.run_config import RunConfig


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
        with qtbot.waitSignal(window.exports.saved, timeout=5000):
            dialog.accept()
    assert json.loads((tmp_path / "out.json").read_text())["methods"] == stored["methods"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 11
    assert (tmp_path / "out.md").read_text().count("\n") == 4
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def _assert_it_changes_the_model(adapter):
    """mlx-lm reads it, and it is no no-op."""
    import mlx.core as mx
    from mlx_lm import load

    from mesp_core.files.bundled import bundled_path

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


def test_a_double_click_on_stop_still_saves(window, qtbot):
    small(window, qtbot, steps=500)
    type_into(window, "seq_len", "512", qtbot)
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    stop = part(window, QToolButton, "tool_stop")
    with qtbot.waitSignal(window.controller.ended, timeout=30_000) as ended:
        qtbot.mouseClick(stop, LEFT)
        qtbot.mouseClick(stop, LEFT)
        qtbot.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
    assert ended.args[0].methods["mebp"].kind == "stopped" and ended.args[0].adapters


def test_a_run_that_hangs_in_a_step_can_be_ended_at_once(open_window, played, qtbot):
    played.gate = threading.Event()
    window = open_window(controller=RunController(comparison=played))
    with qtbot.waitSignal(window.controller.loaded, timeout=5000):
        window.controller.start(Experiment(RunConfig(steps=3), ("mebp",)), Path(window.settings.out_folder))
    press(window, "tool_stop", qtbot)
    assert not part(window, QToolButton, "tool_stop").isEnabled()
    qtbot.waitUntil(lambda: window.actions_.stop.isEnabled(), timeout=3000)
    assert "End" in window.actions_.stop.text() and "not saved" in window.actions_.stop.toolTip()
    with qtbot.waitSignal(window.controller.ended, timeout=5000):
        press(window, "tool_stop", qtbot)
        played.gate.set()
    assert "Stop" in window.actions_.stop.text() and "keep" in window.actions_.stop.toolTip()


def test_a_run_that_cannot_begin_leaves_the_one_before(window, tmp_path, qtbot):
    small(window, qtbot, steps=2)
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    window.settings.out_folder = blocked
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS) as ended:
        press(window, "tool_run", qtbot)
    assert ended.args[0].problem and ended.args[0].results is None
    assert summary(window)["method"][:2] == ["mebp", "mesp"]
    assert part(window, QToolButton, "tool_export results").isEnabled()
    assert part(window, QToolButton, "tool_export adapter").isEnabled()


def test_a_file_that_was_changed_is_shown_as_it_is_trained_on(window, tmp_path, qtbot):
    data = tmp_path / "mine.jsonl"

    def write(count):
        data.write_text(
            "\n".join(json.dumps({"text": f"words {number} to learn, again and again"}) for number in range(count))
        )

    write(9)
    drop(window, data)
    qtbot.waitUntil(lambda: "9 samples" in part(window, QLabel, "data_status").text(), timeout=20_000)
    write(20)
    small(window, qtbot, steps=1)
    with qtbot.waitSignal(window.controller.ended, timeout=A_RUN_MS):
        window.run()
    assert "20 samples" in part(window, QLabel, "data_status").text()


def test_a_long_path_in_a_message_does_not_widen_the_window(window, qtbot):
    before = window.width()
    window.message_bar.show_message("error", "/" + "very-long-folder-name" * 40)
    qtbot.wait(50)
    assert window.width() == before and window.minimumSizeHint().width() <= before
    assert window.message_bar.text.endswith("name")


def test_copy_in_the_edit_menu_goes_to_the_widget_with_the_focus(window, qtbot):
    window.view.log_tab.say("words to copy")
    window.view.tabs.setCurrentWidget(window.view.log_tab)
    log = window.view.log_tab.text
    log.setFocus()
    actions = {
        action.text().replace("&", ""): action for menu in window.menuBar().actions() for action in menu.menu().actions()
    }
    actions["Select All"].trigger()
    actions["Copy"].trigger()
    assert "words to copy" in QApplication.clipboard().text()


def test_a_killed_worker_is_a_message_and_the_other_method_goes_on(window, qtbot):
    small(window, qtbot, steps=15)
    with qtbot.waitSignal(window.controller.stepped, timeout=A_RUN_MS):
        press(window, "tool_run", qtbot)
    (worker,) = (child for child in children() if "mesp_core.training.worker" in " ".join(child.cmdline()))
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
