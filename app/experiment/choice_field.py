"""One of a few."""

from PySide6.QtWidgets import QComboBox

from app.experiment.fields import Field, keep_quiet
from app.experiment.specs import Spec


class ChoiceField(Field):
    """Shows the choices' names; its value is the core's word."""

    def __init__(self, spec: Spec) -> None:
        box = QComboBox()
        for value, words in spec.choices.items():
            box.addItem(words, value)
        keep_quiet(box)
        super().__init__(spec.name, spec.label, spec.tooltip, box, spec.unit)
        box.currentIndexChanged.connect(self.changed)

    def value(self) -> str:
        """The choice of now."""
        return self.editor.currentData()

    def set_value(self, value: str) -> None:
        """Choose `value`."""
        self.editor.setCurrentIndex(self.editor.findData(value))
