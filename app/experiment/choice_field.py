"""One of a few."""

from PySide6.QtWidgets import QComboBox

from app.experiment.fields import SettingField, keep_quiet
from mesp_core.settings.setting import Setting


class ChoiceField(SettingField):
    """Shows the choices' names; its value is the core's word."""

    def __init__(self, setting: Setting) -> None:
        box = QComboBox()
        for value, words in setting.choices.items():
            box.addItem(words, value)
        keep_quiet(box)
        super().__init__(setting, box)
        box.currentIndexChanged.connect(self.changed)

    def value(self) -> str:
        """The choice of now."""
        return self.editor.currentData()

    def set_value(self, value: str) -> None:
        """Choose `value`."""
        self.editor.setCurrentIndex(self.editor.findData(value))
