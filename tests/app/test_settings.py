"""What is remembered, and what is not believed."""

import json

import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QComboBox, QDialogButtonBox, QLineEdit

from app.dialogs.settings_dialog import SettingsDialog
from app.experiment.experiment import Experiment
from app.settings import RECENT, Settings


def reopened(store):
    store.sync()
    return Settings(QSettings(store.fileName(), QSettings.Format.IniFormat))


def test_an_experiment_survives(store, small_config):
    experiment = Experiment(small_config(rank=5, learning_rate=3e-4), ("mebp", "mesp:weights=resident"), True)
    Settings(store).experiment = experiment
    assert reopened(store).experiment == experiment


@pytest.mark.parametrize("stored", ["", "nonsense", json.dumps({"config": {"rank": -1}, "methods": ["mesp"]}), "[1]"])
def test_a_stored_experiment_that_cannot_be_used_is_none(store, stored):
    store.setValue("experiment", stored)
    assert reopened(store).experiment is None


def test_recent_files_newest_first_those_that_are_there_each_once(store, tmp_path):
    settings = Settings(store)
    files = [tmp_path / f"{number}.jsonl" for number in range(RECENT + 2)]
    for file in files:
        file.touch()
        settings.remember("data", str(file))
    settings.remember("data", str(files[5]))
    settings.remember("data", "sample")
    files[6].unlink()
    recent = reopened(store).recent("data")
    assert recent[0] == str(files[5]) and recent.count(str(files[5])) == 1
    assert str(files[6]) not in recent and "sample" not in recent
    assert len(recent) == RECENT - 1
    assert settings.recent("models") == []


@pytest.mark.parametrize("stored", ["nonsense", "5", "{}", '[5, null, "/no/such/file"]'])
def test_recent_files_that_are_none(store, stored):
    store.setValue("recent_data", stored)
    assert reopened(store).recent("data") == []


def test_choices_that_do_not_exist_fall_back(store):
    store.setValue("appearance", "purple")
    store.setValue("text_size", "huge")
    settings = reopened(store)
    assert settings.appearance == "system" and settings.text_size == 100
    assert settings.out_folder.is_absolute()


def test_the_dialog_stores_on_ok_and_not_on_cancel(settings, store, tmp_path, qtbot):
    def edit(button):
        dialog = SettingsDialog(settings)
        qtbot.addWidget(dialog)
        dialog.show()
        dialog.findChild(QLineEdit, "out_folder").setText(str(tmp_path / "elsewhere"))
        dialog.findChild(QComboBox, "appearance").setCurrentText("Dark")
        dialog.findChild(QComboBox, "text_size").setCurrentText("125 %")
        dialog.findChild(QDialogButtonBox).button(button).click()

    before = settings.out_folder
    edit(QDialogButtonBox.StandardButton.Cancel)
    assert (settings.out_folder, settings.appearance, settings.text_size) == (before, "system", 100)
    edit(QDialogButtonBox.StandardButton.Ok)
    again = reopened(store)
    assert (again.out_folder, again.appearance, again.text_size) == (tmp_path / "elsewhere", "dark", 125)
