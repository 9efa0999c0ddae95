"""A field for each setting that is declared, and nothing to be written for a new one."""

from dataclasses import dataclass

from PySide6.QtWidgets import QComboBox

from app.experiment.forms import make_fields
from mesp_core.settings.run_config import SETTINGS
from mesp_core.settings.setting import setting, settings_of


@dataclass(frozen=True)
class Journey:
    days: int = setting(3, "how long it lasts", between=(1, 30), group="basic", after="by", label="Days", unit="d")
    by: str = setting("rail", "how one goes", choices={"rail": "By rail", "foot": "On foot"}, group="basic", label="Way")
    diary: str = setting("", "where it is written down", empty="a notebook", group="advanced", label="Diary")


def test_a_setting_that_is_new_has_a_field(qtbot):
    settings = settings_of(Journey)
    by, days = make_fields("basic", settings)
    [diary] = make_fields("advanced", settings)
    for field, name in ((by, "by"), (days, "days"), (diary, "diary")):
        qtbot.addWidget(field)
        assert field.name == name and field.title == field.label.text() == settings[name].label
        assert settings[name].tooltip in field.editor.toolTip()
    assert [by.editor.itemText(i) for i in range(by.editor.count())] == ["By rail", "On foot"]
    assert days.editor.accessibleName() == "Days (d)" and diary.editor.placeholderText() == "a notebook"
    days.set_value(7)
    assert days.value() == 7


def test_the_windows_fields_are_the_settings_of_its_groups(qtbot):
    for group in ("basic", "advanced"):
        fields = make_fields(group)
        assert {field.name for field in fields} == {name for name, each in SETTINGS.items() if each.group == group}
        for field in fields:
            qtbot.addWidget(field)
            if isinstance(field.editor, QComboBox) and SETTINGS[field.name].choices:
                assert [field.editor.itemData(i) for i in range(field.editor.count())] == list(SETTINGS[field.name].choices)


def test_what_says_what_it_stands_after_does(qtbot):
    fields = make_fields("basic")
    for field in fields:
        qtbot.addWidget(field)
    names = [field.name for field in fields]
    assert names == ["rank", "seq_len", "batch_size", "learning_rate", "optimizer", "steps"]
