"""Which of a block's projections get an adapter."""

from collections.abc import Iterable

from PySide6.QtWidgets import QCheckBox, QGridLayout, QWidget

from app.experiment.fields import SettingField
from mesp_core.settings.setting import Setting

COLUMNS = 2


class TargetField(SettingField):
    """A check box for each projection."""

    def __init__(self, setting: Setting) -> None:
        group = QWidget()
        grid = QGridLayout(group)
        grid.setContentsMargins(2, 2, 2, 2)
        self._boxes = {name: QCheckBox(name) for name in setting.choices}
        for i, (name, box) in enumerate(self._boxes.items()):
            box.setObjectName(f"target_{name}")
            grid.addWidget(box, i // COLUMNS, i % COLUMNS)
        super().__init__(setting, group)
        group.setFocusProxy(next(iter(self._boxes.values())))  # where the label's shortcut leads
        for box in self._boxes.values():
            box.toggled.connect(self.changed)

    def value(self) -> tuple[str, ...]:
        """The names ticked."""
        return tuple(name for name, box in self._boxes.items() if box.isChecked())

    def set_value(self, names: Iterable[str]) -> None:
        """Tick these and no others."""
        for name, box in self._boxes.items():
            box.setChecked(name in names)
