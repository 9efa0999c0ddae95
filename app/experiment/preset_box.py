"""The preset: what the fields were set to at once, or "Custom" when they have left every preset."""

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox

from app.experiment.fields import keep_quiet
from app.widgets.plain import plain_tooltip
from mesp_core.settings.run_config import PRESETS, RunConfig, preset

NAMES = {"first-run": "First run", "paper": "Paper"}
UNTOUCHED = ("model", "data", "method")  # what no preset says anything about


class PresetBox(QComboBox):
    """`picked` comes when a person picks a preset, with the configuration it stands for."""

    picked = Signal(RunConfig)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("preset")
        self.setAccessibleName("Preset")
        self.setToolTip(
            plain_tooltip(
                "First run learns something in a minute. Paper is what the paper measured; it hardly learns. "
                "Model, data and methods stay as they are."
            )
        )
        for name in PRESETS:
            self.addItem(NAMES.get(name, name), name)
        self.addItem("Custom")
        self.model().item(self.count() - 1).setEnabled(False)  # it is what the others are not; nobody can pick it
        keep_quiet(self)
        self.activated.connect(lambda _: self.currentData() and self.picked.emit(preset(self.currentData())))

    def show_values(self, values: Mapping[str, Any]) -> None:
        """Say which preset these values of RunConfig's fields are."""
        index = next((self.findData(name) for name in PRESETS if _is(preset(name), values)), self.count() - 1)
        self.setCurrentIndex(index)


def _is(config: RunConfig, values: Mapping[str, Any]) -> bool:
    return all(getattr(config, name) == value for name, value in values.items() if name not in UNTOUCHED)
