"""Fields from specs, and forms from fields."""

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFormLayout

from app.experiment.choice_field import ChoiceField
from app.experiment.fields import Field
from app.experiment.number_field import NumberField
from app.experiment.specs import Spec
from app.experiment.text_field import TextField

_KINDS = {"choice": ChoiceField, "text": TextField, "whole": NumberField, "real": NumberField}


def make_field(spec: Spec) -> Field:
    """The field for a spec."""
    return _KINDS[spec.kind](spec)


def add_rows(form: QFormLayout, fields: Iterable[Field]) -> None:
    """A row for each field: labels to the left, editors as wide as there is room."""
    form.setContentsMargins(0, 0, 0, 0)
    form.setVerticalSpacing(2)
    form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
    form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
    for field in fields:
        form.addRow(field.label, field)
