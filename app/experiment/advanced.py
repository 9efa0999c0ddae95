"""Everything of a run that a newcomer need not see."""

from PySide6.QtWidgets import QCheckBox, QFormLayout, QWidget

from app.experiment.forms import add_rows, make_fields
from app.experiment.further_methods import FurtherMethods
from app.widgets.plain import plain_tooltip


class Advanced(QWidget):
    """`fields`: by RunConfig's names; `further`: methods with options; `interleave`: a check box."""

    def __init__(self) -> None:
        super().__init__()
        fields = make_fields("advanced")
        self.fields = {field.name: field for field in fields}
        self.further = FurtherMethods()
        self.interleave = QCheckBox("Interleave methods step by step")
        self.interleave.setObjectName("interleave")
        self.interleave.setToolTip(
            plain_tooltip(
                "One step of each method in turn: fair when the machine's speed drifts, as it does when it gets warm. "
                "But all methods are in memory at once, and they run longer before the first one is done."
            )
        )
        form = QFormLayout(self)
        add_rows(form, [*fields, self.further])
        form.addRow(self.interleave)
