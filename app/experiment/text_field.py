"""A text: typed, and allowed to be empty."""

from PySide6.QtWidgets import QLineEdit

from app.experiment.fields import Field
from app.experiment.specs import Spec


class TextField(Field):
    """While it is empty it shows, paler, what that stands for: the spec's `empty`."""

    def __init__(self, spec: Spec) -> None:
        line = QLineEdit(placeholderText=spec.empty)
        super().__init__(spec.name, spec.label, spec.tooltip, line)
        line.textChanged.connect(self.changed)

    def value(self) -> str:
        """The text."""
        return self.editor.text().strip()

    def set_value(self, text: str) -> None:
        """Show this text, unless it stands there already."""
        if text != self.value():
            self.editor.setText(text)
