"""A text: typed, and allowed to be empty."""

from PySide6.QtWidgets import QLineEdit

from app.experiment.fields import SettingField
from mesp_core.settings.setting import Setting


class TextField(SettingField):
    """While it is empty it shows, paler, what that stands for: the setting's `empty`."""

    def __init__(self, setting: Setting) -> None:
        line = QLineEdit(placeholderText=setting.empty)
        super().__init__(setting, line)
        line.textChanged.connect(self.changed)

    def value(self) -> str:
        """The text."""
        return self.editor.text().strip()

    def set_value(self, text: str) -> None:
        """Show this text, unless it stands there already."""
        if text != self.value():
            self.editor.setText(text)
