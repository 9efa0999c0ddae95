"""Fields from the settings that are declared, and forms from fields."""

from collections.abc import Iterable, Mapping

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFormLayout

from app.experiment.choice_field import ChoiceField
from app.experiment.fields import Field
from app.experiment.number_field import NumberField
from app.experiment.target_field import TargetField
from app.experiment.text_field import TextField
from mesp_core.settings.run_config import SETTINGS
from mesp_core.settings.setting import Group, Setting

_KINDS = {"choice": ChoiceField, "text": TextField, "whole": NumberField, "real": NumberField, "names": TargetField}


def make_fields(group: Group, settings: Mapping[str, Setting] = SETTINGS) -> list[Field]:
    """The fields of a group, in the order in which its settings are declared, unless one says what it stands after."""
    of_group = [setting for setting in settings.values() if setting.group == group]
    shown = [setting for setting in of_group if not setting.after]
    for setting in of_group:
        if setting.after:
            shown.insert(shown.index(settings[setting.after]) + 1, setting)
    return [_KINDS[setting.kind](setting) for setting in shown]


def add_rows(form: QFormLayout, fields: Iterable[Field]) -> None:
    """A row for each field: labels to the left, editors as wide as there is room."""
    form.setContentsMargins(0, 0, 0, 0)
    form.setVerticalSpacing(2)
    form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
    form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
    for field in fields:
        form.addRow(field.label, field)
