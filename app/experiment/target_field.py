"""Which of a block's projections get an adapter."""

from collections.abc import Iterable

from PySide6.QtWidgets import QCheckBox, QGridLayout, QWidget

from app.experiment.fields import Field
from mesp_core.models.architecture import PROJECTIONS

COLUMNS = 2


class TargetField(Field):
    """A check box for each projection."""

    def __init__(self) -> None:
        group = QWidget()
        grid = QGridLayout(group)
        grid.setContentsMargins(2, 2, 2, 2)
        self._boxes = {name: QCheckBox(name) for name in PROJECTIONS}
        for i, (name, box) in enumerate(self._boxes.items()):
            box.setObjectName(f"target_{name}")
            grid.addWidget(box, i // COLUMNS, i % COLUMNS)
        super().__init__("target_modules", "Adapted layers", "Which matrices of every block get an adapter.", group)
        group.setFocusProxy(self._boxes[PROJECTIONS[0]])  # where the label's shortcut leads
        for box in self._boxes.values():
            box.toggled.connect(self.changed)

    def value(self) -> tuple[str, ...]:
        """The names ticked."""
        return tuple(name for name, box in self._boxes.items() if box.isChecked())

    def set_value(self, names: Iterable[str]) -> None:
        """Tick these and no others."""
        for name, box in self._boxes.items():
            box.setChecked(name in names)
