"""The whole panel, driven by keys and mouse, on the bundled model and sample."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QComboBox, QLabel, QLineEdit, QScrollArea, QWidget

from app.experiment.experiment import Experiment
from app.widgets.theme import method_color, set_appearance
from mesp_core.data.rows import read_rows
from mesp_core.errors import UsageError
from mesp_core.methods.registry import METHODS
from mesp_core.settings.run_config import PRESETS, SETTINGS, RunConfig, preset

ROOT = Path(__file__).resolve().parents[3]


# --- what it starts with


def test_it_starts_ready_with_the_first_run_on_the_bundled_model_and_sample(panel, find):
    assert panel.experiment() == Experiment(RunConfig(method="mebp"), ("mebp", "mesp"), False)
    assert panel.heard.ready == [""]
    assert [name for name, _ in panel.heard.data if name != "preparing"] == ["prepared"]
    prepared = panel.heard.data[-1][1]
    assert len(prepared.tokens) == 262
    assert find(panel, "data_status").text().startswith("262 samples")
    assert find(panel, "preset").currentText() == "First run"


def test_every_field_of_a_run_is_on_the_panel(panel):
    shown = panel._page.fields
    assert {*shown, "method"} == set(SETTINGS)
    for name, field in shown.items():
        assert field.editor.objectName() == name and field.editor.accessibleName()
        assert field.label.text() == SETTINGS[name].label and field.editor.toolTip()


def test_an_experiment_survives_being_set(panel):
    config = RunConfig(
        model="tiny",
        data="sample",
        method="mesp",
        rank=3,
        alpha=5.5,
        target_modules=("q_proj", "down_proj"),
        seq_len=77,
        batch_size=2,
        grad_accumulation=3,
        steps=9,
        learning_rate=0.0123,
        optimizer="adam",
        weight_decay=0.5,
        schedule="cosine",
        warmup_steps=4,
        loss_on="completion",
        dtype="float16",
        adapter_dtype="bfloat16",
        kernel="dequantize",
        seed=2**63 - 1,
        save_every=7,
        max_samples=11,
        memory_limit_mb=900,
        time_limit_s=1.5,
        max_grad_norm=0.75,
        scratch_dir="/somewhere/else",
        chat_template="chatml",
    )
    changed = {name for name, value in config.to_dict().items() if value != RunConfig().to_dict()[name]}
    assert changed | {"model", "data", "method"} == {field.name for field in dataclasses.fields(RunConfig)}
    experiment = Experiment(config, ("mesp", "autodiff", "mebp:weights=resident"), True)
    panel.set_experiment(experiment)
    assert panel.experiment() == experiment


# --- presets


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_everything_but_model_data_and_methods(panel, qtbot, find, tmp_path, name, choose):
    data = tmp_path / "mine.jsonl"
    data.write_text(json.dumps({"text": "some words to learn " * 9}) + "\n")
    odd = RunConfig(data=str(data), rank=5, steps=7, seed=3, optimizer="adam", memory_limit_mb=1)
    panel.set_experiment(Experiment(odd, ("autodiff", "mesp:weights=resident"), False))
    box = find(panel, "preset")
    assert box.currentText() == "Custom"
    choose(box, {"first-run": "First run", "paper": "Paper"}[name])
    assert panel.experiment().config == preset(name, data=str(data), method="autodiff")
    assert panel.experiment().methods == ("autodiff", "mesp:weights=resident")


def test_custom_shows_by_itself_and_cannot_be_picked(panel, qtbot, find, type_into):
    box = find(panel, "preset")
    type_into(panel, "rank", "4")
    assert box.currentText() == "Custom"
    type_into(panel, "rank", "8")
    assert box.currentText() == "First run"
    qtbot.keyClick(box, Qt.Key.Key_Down)
    assert box.currentText() == "Paper"
    qtbot.keyClick(box, Qt.Key.Key_Down)
    assert box.currentText() == "Paper"


# --- wrong values


def test_all_wrong_values_are_marked_at_once_with_the_cores_message(panel, type_into, error_of):
    wrong = {"rank": "abc", "batch_size": "0", "learning_rate": "-1", "steps": "1.5"}
    for name, text in wrong.items():
        type_into(panel, name, text)
    for name, value in {"rank": "abc", "batch_size": 0, "learning_rate": -1.0, "steps": "1.5"}.items():
        with pytest.raises(UsageError) as core:
            RunConfig(**{name: value})
        assert f"{name}: {error_of(panel, name)}" == str(core.value)
    assert error_of(panel, "seq_len") == ""
    assert panel.experiment() is None
    assert panel.heard.ready[-1] == "LoRA rank: 'abc' is not a whole number from 1 to 4096."
    for name, text in {"rank": "4", "batch_size": "1", "learning_rate": "0.1", "steps": "5"}.items():
        type_into(panel, name, text)
        assert error_of(panel, name) == ""
    assert panel.heard.ready[-1] == ""
    assert panel.experiment().config == RunConfig(method="mebp", rank=4, learning_rate=0.1, steps=5)


def test_a_typed_number_is_not_completed(panel, type_into, find):
    type_into(panel, "rank", "1")
    assert find(panel, "rank").currentText() == "1"
    assert panel.experiment().config.rank == 1


def test_the_mark_is_drawn_around_the_field(panel, type_into, find, qtbot):
    field = find(panel, "field_rank")
    before = field.grab().toImage()
    type_into(panel, "rank", "x")
    qtbot.wait(20)
    after = field.grab().toImage()
    editor = find(panel, "rank").geometry()
    corner = QPoint(editor.center().x(), editor.top() - 1)
    assert before.pixelColor(corner) != after.pixelColor(corner)
    assert after.pixelColor(corner).red() > after.pixelColor(corner).green() + 50


def test_a_length_beyond_the_models_is_refused_and_not_offered(panel, type_into, error_of, find):
    type_into(panel, "seq_len", "1025")
    assert error_of(panel, "seq_len") == "1025 is more than tiny was made for; it allows up to 1024."
    assert panel.experiment() is None
    assert panel.heard.now == "unprepared"
    box = find(panel, "seq_len")
    assert [box.itemText(i) for i in range(box.count())] == ["64", "128", "256", "512", "1024"]


def test_lengths_that_a_short_model_does_not_have_are_not_offered(panel, tiny_copy, find, qtbot):
    config = json.loads((tiny_copy / "config.json").read_text())
    (tiny_copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200}))
    panel.set_model(str(tiny_copy))
    box = find(panel, "seq_len")
    qtbot.waitUntil(lambda: box.count() == 2)
    assert box.currentText() == "128"
    assert [box.itemText(i) for i in range(2)] == ["64", "128"]


def test_a_wrong_advanced_value_opens_the_fold(panel, type_into, error_of, find):
    advanced = find(panel, "alpha")
    assert not advanced.isVisible()
    panel.set_experiment(Experiment(RunConfig(steps=20, warmup_steps=10)))
    assert not advanced.isVisible()
    type_into(panel, "steps", "5")
    assert advanced.isVisible()
    assert "10 is not below steps (5)" in error_of(panel, "warmup_steps")
    assert panel.heard.ready[-1].startswith("Warm-up: ")


def test_the_fold_opens_and_closes_by_key(panel, qtbot, find):
    button = find(panel, "advanced")
    button.setFocus()
    qtbot.keyClick(button, Qt.Key.Key_Space)
    assert find(panel, "alpha").isVisible()
    qtbot.keyClick(button, Qt.Key.Key_Space)
    assert not find(panel, "alpha").isVisible()


def test_no_adapted_layer_is_wrong(panel, qtbot, find, error_of, click):
    click(find(panel, "advanced"))
    for box in panel._page.fields["target_modules"].findChildren(QAbstractButton):
        box.click()
    assert error_of(panel, "target_modules").startswith("none given")
    click(find(panel, "target_q_proj"))
    assert panel.experiment().config.target_modules == ("q_proj",)


# --- methods


def test_methods_come_in_their_order_and_none_is_a_problem(panel, qtbot, find, error_of, click):
    click(find(panel, "method_autodiff"))
    click(find(panel, "method_mebp"))
    assert panel.experiment().methods == ("mesp", "autodiff")
    assert panel.experiment().config.method == "mesp"
    click(find(panel, "method_autodiff"))
    click(find(panel, "method_mesp"))
    assert panel.experiment() is None
    assert error_of(panel, "methods") and panel.heard.ready[-1].startswith("Methods: ")


def test_methods_with_options_can_be_typed(panel, qtbot, find, type_into, error_of, click):
    click(find(panel, "advanced"))
    type_into(panel, "further_methods", "mesp:weights=resident, lean:budget=450 MB")
    assert panel.experiment().methods == ("mebp", "mesp", "mesp:weights=resident", "lean:budget=450 MB")
    type_into(panel, "further_methods", "mesp")
    assert "'mesp' is named twice" in error_of(panel, "further_methods")
    assert panel.experiment() is None
    type_into(panel, "further_methods", "mesp:weights=streamed")
    assert "is the same run" in error_of(panel, "further_methods")
    type_into(panel, "further_methods", "mesp:speed=9")
    assert "has no option 'speed'" in error_of(panel, "further_methods")
    click(find(panel, "interleave"))
    type_into(panel, "further_methods", "")
    assert panel.experiment() == Experiment(RunConfig(method="mebp"), ("mebp", "mesp"), True)


def test_each_method_has_its_colour_in_light_and_dark(panel, find, qtbot):
    def swatch(method):
        side = find(panel, f"method_{method}").fontMetrics().ascent()
        return find(panel, f"method_{method}").icon().pixmap(side, side).toImage().pixelColor(side // 2, side // 2)

    try:
        for appearance in ("light", "dark"):
            set_appearance(appearance)
            qtbot.wait(1)
            for method in METHODS:
                assert swatch(method) == method_color(method)
    finally:
        set_appearance("system")


# --- hands and eyes


def test_changed_tells_every_edit_by_a_person(panel, qtbot, find, type_into, choose, click):
    with qtbot.waitSignal(panel.changed):
        type_into(panel, "steps", "7")
    with qtbot.waitSignal(panel.changed):
        click(find(panel, "method_autodiff"))
    with qtbot.waitSignal(panel.changed):
        choose(find(panel, "optimizer"), "SGD")


def test_the_wheel_scrolls_and_changes_nothing(panel, find, qtbot):
    panel.resize(330, 250)
    area, before = panel.findChild(QScrollArea), panel.experiment()
    bar = area.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 100)
    for name in ("preset", "model", "data", "rank", "seq_len", "optimizer"):
        for focus in (name, "steps"):
            box = find(panel, name)
            find(panel, focus).setFocus()
            area.ensureWidgetVisible(box)
            was = bar.value()
            up = was > bar.maximum() / 2
            inside = box.mapTo(panel, box.rect().center())
            QTest.wheelEvent(panel.windowHandle(), QPointF(inside), QPoint(0, 120 if up else -120))
            qtbot.waitUntil(lambda was=was: bar.value() != was)
            assert panel.experiment() == before, name


def test_the_tab_key_goes_from_top_to_bottom_through_everything(panel, qtbot, find, click):
    click(find(panel, "advanced"))
    panel.resize(330, 2000)
    qtbot.wait(20)
    first = find(panel, "preset")
    first.setFocus()
    names, lines = [], []
    while True:
        focus = QApplication.focusWidget()
        if names and focus is first:
            break
        assert panel.isAncestorOf(focus), names
        names.append(focus.objectName())
        corner = focus.mapTo(panel, QPoint(0, 0))
        lines.append((corner.y() + focus.height() // 2) // 12 * 10000 + corner.x())
        qtbot.keyClick(focus, Qt.Key.Key_Tab)
        assert len(names) < 60, names
    assert lines == sorted(lines), names
    wanted = {*panel._page.fields, "further_methods", "interleave", "open_model", "open_data", "advanced", "preset"} - {
        "target_modules"
    }
    assert wanted <= set(names)
    assert {name for name in names if name.startswith("target_")} and "method_autodiff" in names


def test_nothing_is_cut_off_at_its_usual_width(panel, qtbot, find, click):
    click(find(panel, "advanced"))
    qtbot.wait(20)
    assert 300 <= panel.sizeHint().width() <= 360
    area = panel.findChild(QScrollArea)
    assert area.widget().width() <= area.viewport().width()
    labels = [label for label in area.widget().findChildren(QLabel) if label.isVisible() and not label.hasHeightForWidth()]
    assert labels
    for label in labels:
        assert label.width() >= label.fontMetrics().horizontalAdvance(label.text()), label.text()


def test_labels_are_aligned_and_lead_to_their_fields(panel, qtbot, find, click):
    click(find(panel, "advanced"))
    qtbot.wait(20)
    rows = [field for name, field in panel._page.fields.items() if name not in ("model", "data")]
    assert len({field.label.mapTo(panel, QPoint(0, 0)).x() for field in rows}) == 1
    assert len({field.editor.mapTo(panel, QPoint(0, 0)).x() for field in rows}) == 1
    assert len({field.editor.width() for field in rows}) == 1
    assert all(field.label.buddy() is field.editor for field in panel._page.fields.values())


def test_it_grows_with_the_font(panel, qtbot):
    before, narrow = panel.sizeHint(), panel.minimumSizeHint().width()
    font = panel.font()
    font.setPointSizeF(1.5 * font.pointSizeF())
    panel.setFont(font)
    assert panel.sizeHint().width() > 1.3 * before.width()
    qtbot.waitUntil(lambda: panel.minimumSizeHint().width() > 1.2 * narrow)  # it is laid out anew a little later


def test_every_control_has_a_name_for_tests_and_readers(panel):
    controls = (QLineEdit, QComboBox, QAbstractButton)
    for control in panel.findChildren(QWidget):
        if isinstance(control, controls) and not isinstance(control.parent(), QComboBox):
            assert control.objectName(), control
            assert control.accessibleName() or getattr(control, "text", str)(), control.objectName()


def test_the_scratch_folder_is_text_and_may_be_empty(panel, type_into, find, click):
    click(find(panel, "advanced"))
    assert find(panel, "scratch_dir").placeholderText() == "the cache folder"
    type_into(panel, "scratch_dir", " ~/my scratch ")
    assert panel.experiment().config.scratch_dir == "~/my scratch"
    assert find(panel, "preset").currentText() == "Custom"
    type_into(panel, "scratch_dir", " ")
    assert panel.experiment().config == RunConfig(method="mebp")
    assert find(panel, "preset").currentText() == "First run"


def test_the_largest_numbers_can_be_typed(panel, type_into):
    type_into(panel, "steps", str(SETTINGS["steps"].between[1]))
    assert panel.experiment().config.steps == SETTINGS["steps"].between[1]


def test_the_sample_the_panel_counts_is_the_whole_file(panel):
    prepared = panel.heard.data[-1][1]
    assert len(prepared.tokens) == sum(1 for _ in read_rows(prepared.data_file))


def test_mlx_is_never_imported(tmp_path):
    program = """
import sys
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from app.experiment.model_field import ModelField
from app.experiment.panel import ExperimentPanel

application = QApplication([])
panel = ExperimentPanel(model=ModelField(list_cached=list))
panel.prepared.connect(lambda prepared: application.exit(0))
panel.unprepared.connect(lambda message: application.exit(2))
QTimer.singleShot(30000, lambda: application.exit(3))
panel.show()
code = application.exec()
panel.close_background()
loaded = [name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm", "transformers", "tokenizers")]
print(panel.experiment().config.model, loaded)
sys.exit(code or bool(loaded))
"""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "tiny []"
