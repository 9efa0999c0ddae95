"""A number: typed, or picked from a few."""

from collections.abc import Sequence

from PySide6.QtWidgets import QComboBox, QLineEdit

from app.experiment.fields import SettingField, keep_quiet
from app.experiment.judge import as_text, real_number, whole_number
from app.widgets.unit_line_edit import UnitLineEdit
from mesp_core.settings.setting import Setting

LONGEST = 24  # characters; more than any allowed number has


class NumberField(SettingField):
    """Its value is a number, or the text itself where that is none."""

    def __init__(self, setting: Setting) -> None:
        self._parse = real_number if setting.kind == "real" else whole_number
        self._offers = setting.offers
        self._line = UnitLineEdit(setting.unit)
        editor = _combo(self._line, setting.offers) if setting.offers else self._line
        super().__init__(setting, editor)
        self._line.setMaxLength(LONGEST)
        self._line.textChanged.connect(self.changed)

    def value(self) -> float | str:
        """The number of now."""
        return self._parse(self._line.text())

    def set_value(self, value: float) -> None:
        """Show this number, unless the text means it already."""
        if value != self.value():
            self._line.setText(as_text(value))

    def limit_offers(self, longest: float) -> None:
        """Offer nothing above `longest`."""
        if not self._offers:
            return
        wanted = [as_text(offer) for offer in self._offers if offer <= longest]
        if [self.editor.itemText(i) for i in range(self.editor.count())] != wanted:
            text = self._line.text()
            was = self._line.blockSignals(True)  # the text of now stays, whatever is offered
            self.editor.clear()
            self.editor.addItems(wanted)
            self.editor.setEditText(text)
            self._line.blockSignals(was)


def _combo(line: QLineEdit, offers: Sequence[float]) -> QComboBox:
    box = QComboBox(editable=True, insertPolicy=QComboBox.InsertPolicy.NoInsert)
    box.setLineEdit(line)
    box.setCompleter(None)  # it would make 16 of a typed 1
    box.addItems([as_text(offer) for offer in offers])
    keep_quiet(box)
    return box
