"""Exports of results and adapters through their dialogs."""

import csv
import io
import json

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QDialogButtonBox, QLabel, QLineEdit, QMessageBox

from app.dialogs.adapter_dialog import AdapterDialog
from app.dialogs.results_dialog import ResultsDialog, write_results
from mesp_core.errors import UsageError
from mesp_core.runs.outcome import Outcome
from mesp_core.runs.results import Results


@pytest.fixture
def results(make_step):
    results = Results({"model": "tiny"}, {"system": "any"})
    for method in ("mebp", "mesp"):
        for step in (1, 2):
            results.add(make_step(method, step, loss=4.0 - step))
        results.end(method, Outcome("finished", "done"))
    return results


def test_every_ending_writes_its_kind(results, tmp_path):
    for ending in ("json", "csv", "md", "PNG"):
        write_results(results, lambda: b"\x89PNG picture", tmp_path / f"out.{ending}")
    assert json.loads((tmp_path / "out.json").read_text())["methods"]["mesp"]["summary"]["final_loss"] == 2.0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [(row["method"], row["step"]) for row in rows] == [("mebp", "1"), ("mebp", "2"), ("mesp", "1"), ("mesp", "2")]
    assert (tmp_path / "out.md").read_text().startswith("| method | s/step |")
    assert (tmp_path / "out.PNG").read_bytes() == b"\x89PNG picture"
    assert len(list(tmp_path.iterdir())) == 4


def test_another_ending_is_refused(results, tmp_path):
    with pytest.raises(UsageError, match=r"\.json, \.csv, \.md, \.png"):
        write_results(results, bytes, tmp_path / "out.xlsx")


def test_the_results_dialog_adds_the_ending_of_the_chosen_kind(tmp_path, qtbot):
    dialog = ResultsDialog(tmp_path)
    qtbot.addWidget(dialog)
    dialog.show()
    dialog.selectNameFilter("Every step, as CSV (*.csv)")
    dialog.filterSelected.emit("Every step, as CSV (*.csv)")
    dialog.selectFile("mine")
    with qtbot.waitSignal(dialog.chosen, timeout=1000) as chosen:
        dialog.accept()
    assert chosen.args == [tmp_path / "mine.csv"]


def test_a_dot_in_the_name_is_no_ending(tmp_path, qtbot):
    dialog = ResultsDialog(tmp_path)
    qtbot.addWidget(dialog)
    dialog.show()
    dialog.selectFile("Qwen2.5 run")
    with qtbot.waitSignal(dialog.chosen, timeout=1000) as chosen:
        dialog.accept()
    assert chosen.args == [tmp_path / "Qwen2.5 run.json"]


@pytest.fixture
def adapters(tmp_path):
    folders = {}
    for method in ("mebp", "mesp"):
        folder = tmp_path / "run" / method / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapters.safetensors").write_text(f"weights of {method}")
        (folder / "adapter_config.json").write_text("{}")
        folders[method] = folder
    return folders


@pytest.fixture
def dialog(adapters, tmp_path, qtbot):
    dialog = AdapterDialog(adapters, tmp_path / "mine")
    qtbot.addWidget(dialog)
    dialog.show()
    return dialog


def press_export(dialog, qtbot):
    button = dialog.findChild(QDialogButtonBox).button(QDialogButtonBox.StandardButton.Save)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def test_the_chosen_methods_adapter_is_copied_whole(dialog, tmp_path, qtbot):
    dialog.findChild(QComboBox, "adapter_method").setCurrentText("mebp")
    with qtbot.waitSignal(dialog.exported, timeout=1000) as exported:
        press_export(dialog, qtbot)
    assert exported.args == ["mebp", tmp_path / "mine"]
    assert (tmp_path / "mine" / "adapters.safetensors").read_text() == "weights of mebp"
    assert sorted(file.name for file in (tmp_path / "mine").iterdir()) == ["adapter_config.json", "adapters.safetensors"]
    assert not dialog.isVisible()


def test_a_folder_of_other_things_is_never_replaced(dialog, tmp_path, qtbot):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    press_export(dialog, qtbot)
    problem = dialog.findChild(QLabel, "adapter_problem")
    assert dialog.isVisible() and problem.isVisible() and str(tmp_path / "mine") in problem.text()
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_an_adapter_is_replaced_only_after_a_yes(dialog, tmp_path, qtbot):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text("{}")
    (tmp_path / "mine" / "adapters.safetensors").write_text("older")
    press_export(dialog, qtbot)
    question = dialog.findChild(QMessageBox)
    qtbot.mouseClick(question.button(QMessageBox.StandardButton.Cancel), Qt.MouseButton.LeftButton)
    assert (tmp_path / "mine" / "adapters.safetensors").read_text() == "older"
    press_export(dialog, qtbot)
    question = dialog.findChildren(QMessageBox)[-1]
    (replace,) = (button for button in question.buttons() if button.text() == "Replace")
    with qtbot.waitSignal(dialog.exported, timeout=1000):
        qtbot.mouseClick(replace, Qt.MouseButton.LeftButton)
    assert (tmp_path / "mine" / "adapters.safetensors").read_text() == "weights of mesp"


@pytest.mark.parametrize("typed", ["", "relative/folder"])
def test_a_folder_without_its_whole_path_is_refused(dialog, typed, qtbot):
    dialog.findChild(QLineEdit, "adapter_folder").setText(typed)
    press_export(dialog, qtbot)
    assert "whole path" in dialog.findChild(QLabel, "adapter_problem").text()
