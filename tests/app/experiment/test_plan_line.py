"""The line that says what the methods will need: the real planner on the bundled model, in a panel driven by hand."""

import pytest
from PySide6.QtCore import Qt, QThread
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QApplication

from app.experiment import plan_line
from app.experiment.experiment import Experiment
from app.experiment.model_field import ModelField
from app.experiment.plan_line import FEWEST_LINES, PlanLine, Wanted, in_text
from app.widgets.theme import level_color, set_appearance
from mesp_core.files.bundled import bundled_path
from mesp_core.machine.memory import MB, machine_memory
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.planner import BudgetTooSmall, plan
from mesp_core.settings.run_config import RunConfig

MACHINE = f"{machine_memory()[0] / MB / 1024:.0f} GB"


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(bundled_path("tiny"))


@pytest.fixture
def planned(checkpoint):
    """planned(method, **fields) -> the core's plan on tiny."""
    return lambda method, **fields: plan(RunConfig(**fields), checkpoint, method)


@pytest.fixture
def make_line(qtbot):
    """make_line(memory_bytes) -> a line on a machine of so much memory."""
    lines = []

    def make(memory_bytes=24 * 1024 * MB):
        lines.append(PlanLine(memory_bytes))
        qtbot.addWidget(lines[-1])
        return lines[-1]

    yield make
    for line in lines:
        line.close_background()


def text_of(panel, find):
    line = find(panel, "plan_line")
    return line.toPlainText() if line.isVisible() else ""


def mb(chosen):
    return f"{chosen.training_memory / MB:.0f} MB"


def peak(nbytes):
    return f"{nbytes / MB:.1f} MB" if nbytes < 9.95 * MB else f"{nbytes / MB:.0f} MB"


def color_of(line, words):
    """The colour in which the line shows some words, as a person sees it."""
    cursor = line.document().find(words)
    assert not cursor.isNull(), words
    form = cursor.charFormat()
    return form.foreground().color() if form.hasProperty(form.Property.ForegroundBrush) else line.palette().text().color()


# --- in the panel


def test_it_says_what_each_ticked_method_needs_and_follows_the_fields(panel, find, type_into, click, qtbot, planned):
    def says(*methods, **fields):
        each = ", ".join(f"{method} {mb(planned(method, **fields))}" for method in methods)
        qtbot.waitUntil(lambda: text_of(panel, find) == f"Will need about: {each} of {MACHINE}.", timeout=2000)

    says("mebp", "mesp")
    click(find(panel, "method_lean"))
    says("mebp", "mesp", "lean")
    type_into(panel, "seq_len", "777")
    says("mebp", "mesp", "lean", seq_len=777)
    click(find(panel, "method_mebp"))
    says("mesp", "lean", seq_len=777)


def test_the_tooltip_tells_each_phase_and_its_largest_part(panel, find, qtbot, planned):
    qtbot.waitUntil(lambda: text_of(panel, find) != "")
    tip = find(panel, "plan_line").toolTip().replace("\u00a0", " ")
    for method in ("mebp", "mesp"):
        chosen = planned(method)
        assert f"{method}: {peak(chosen.allocator_peak)}\n" in tip
        for phase in chosen.phases:
            assert f"{phase.name} {peak(phase.nbytes)}, of which {phase.largest.name} {peak(phase.largest.nbytes)}" in tip


def test_nothing_is_said_while_a_field_is_wrong(panel, find, type_into, qtbot):
    qtbot.waitUntil(lambda: text_of(panel, find) != "")
    before = text_of(panel, find)
    type_into(panel, "rank", "x")
    assert text_of(panel, find) == ""
    type_into(panel, "rank", "8")
    qtbot.waitUntil(lambda: text_of(panel, find) == before)


def test_nothing_is_said_while_the_model_is_not_here(make_panel, find, hear, qtbot):
    panel = make_panel(ModelField(list_cached=list, find=lambda model: None, fetch=lambda *_: None))
    heard = hear(panel)
    qtbot.waitUntil(lambda: heard.now == "unprepared")
    qtbot.wait(50)
    assert text_of(panel, find) == ""


def test_too_small_a_budget_is_marked_where_it_was_typed(panel, find, click, type_into, error_of, qtbot, planned):
    with pytest.raises(BudgetTooSmall) as core:
        planned("lean:budget=1MB")
    click(find(panel, "advanced"))
    type_into(panel, "further_methods", "lean:budget=1MB")
    qtbot.waitUntil(lambda: error_of(panel, "further_methods") == str(core.value))
    assert panel.experiment() is None and text_of(panel, find) == ""
    assert panel.heard.ready[-1] == f"Further methods: {core.value}"
    type_into(panel, "further_methods", "lean:budget=450MB")
    assert error_of(panel, "further_methods") == ""
    enough = planned("lean:budget=450MB")
    qtbot.waitUntil(lambda: f"lean:budget=450MB {mb(enough)}" in text_of(panel, find))
    assert panel.experiment().methods == ("mebp", "mesp", "lean:budget=450MB")
    assert "kept: attention" in find(panel, "plan_line").toolTip()


def test_interleaved_methods_are_summed(panel, find, click, qtbot, planned):
    click(find(panel, "advanced"))
    click(find(panel, "interleave"))
    both = (planned("mebp").training_memory + planned("mesp").training_memory) / MB
    qtbot.waitUntil(lambda: text_of(panel, find).endswith(f", interleaved {both:.0f} MB of {MACHINE}."))


def test_plans_are_made_on_another_thread(panel, find, type_into, qtbot, monkeypatch):
    threads = []

    def watched(*arguments):
        threads.append(QThread.currentThread())
        return plan(*arguments)

    monkeypatch.setattr(plan_line, "plan", watched)
    type_into(panel, "seq_len", "99")
    qtbot.waitUntil(lambda: len(threads) >= 2)
    assert QApplication.instance().thread() not in threads


def test_a_defect_in_the_planner_does_not_keep_anybody_from_running(panel, find, type_into, qtbot, monkeypatch):
    def broken(*_):
        raise KeyError("a norm")

    monkeypatch.setattr(plan_line, "plan", broken)
    type_into(panel, "seq_len", "99")
    qtbot.waitUntil(lambda: "cannot be predicted: Unexpected KeyError: 'a norm'" in text_of(panel, find))
    assert panel.experiment() == Experiment(RunConfig(method="mebp", seq_len=99))


# --- what does not fit


def test_what_does_not_fit_is_said_in_words_and_in_colour(make_panel, make_line, find, qtbot, planned):
    mebp, mesp = planned("mebp"), planned("mesp")
    assert mesp.training_memory < mebp.training_memory
    line = make_line((mebp.training_memory + mesp.training_memory) // 2)
    panel = make_panel(plan_line=line)
    memory = f"{(mebp.training_memory + mesp.training_memory) / 2 / MB:.0f} MB"
    expected = f"Will need about: mesp {mb(mesp)} of {memory}. mebp will not fit: {mb(mebp)} of {memory}."
    qtbot.waitUntil(lambda: text_of(panel, find) == expected)
    for appearance in ("light", "dark"):
        set_appearance(appearance)
        qtbot.wait(1)
        assert color_of(line, "mebp will not fit") == level_color("bad")
        assert color_of(line, "Will need about") == line.palette().text().color() != level_color("bad")
    assert panel.experiment() is not None  # a prediction forbids nothing


def test_sizes_of_gigabytes(planned):
    large = planned("autodiff", seq_len=1024, batch_size=64)
    size = f"{large.training_memory / MB / 1024:.3g} GB"
    assert large.training_memory > 4 * 1024 * MB
    well, ill = in_text([large], False, 4 * 1024 * MB)
    assert (well, ill.replace("\u00a0", " ")) == ("", f"autodiff will not fit: {size} of 4 GB.")


def test_together_they_may_not_fit_though_each_does(planned):
    plans = [planned("mebp"), planned("mesp")]
    everything = sum(chosen.training_memory for chosen in plans)
    memory = everything - MB
    well, ill = (text.replace("\u00a0", " ") for text in in_text(plans, True, memory))
    assert well == f"Will need about: mebp {mb(plans[0])}, mesp {mb(plans[1])}."
    assert ill == f"Interleaved, they will not fit together: {everything / MB:.0f} MB of {memory / MB:.0f} MB."
    assert in_text(plans, False, memory)[1] == ""


# --- hands and eyes


def test_it_can_be_selected_and_copied_by_keys(panel, find, qtbot):
    qtbot.waitUntil(lambda: text_of(panel, find) != "")
    line = find(panel, "plan_line")
    line.setFocus()
    QApplication.clipboard().clear()
    qtbot.keyClick(line, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(line, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QApplication.clipboard().text() == text_of(panel, find)
    qtbot.keyClicks(line, "typed")
    assert "typed" not in text_of(panel, find)


def test_it_is_as_high_as_its_text_and_a_long_one_is_scrolled_in_a_low_panel(make_line, make_panel, find, qtbot, checkpoint):
    line = make_line()
    panel = make_panel(plan_line=line)
    qtbot.waitUntil(lambda: text_of(panel, find) != "")
    qtbot.waitUntil(lambda: line.verticalScrollBar().maximum() == 0)
    usual = line.height()
    methods = ("mebp", "mesp", "mesp-store-h", "autodiff", "lean", "mesp:weights=resident:loss=full:inputs=disk:tmpfs")
    panel.set_experiment(Experiment(RunConfig(), methods))
    qtbot.waitUntil(lambda: "tmpfs" in text_of(panel, find) and line.height() > usual)
    qtbot.waitUntil(lambda: line.verticalScrollBar().maximum() == 0)  # it is laid out anew a little later
    lines = FEWEST_LINES + 1
    assert line.minimumSizeHint().height() < lines * line.fontMetrics().lineSpacing()
    font = panel.font()
    font.setPointSizeF(2 * font.pointSizeF())
    panel.setFont(font)
    panel.resize(panel.minimumSizeHint().width(), 300)
    qtbot.waitUntil(lambda: line.verticalScrollBar().maximum() > 0)
    line.moveCursor(QTextCursor.MoveOperation.End)
    line.ensureCursorVisible()
    assert line.cursorRect().bottom() <= line.viewport().height()


def test_the_same_is_planned_once(make_line, checkpoint, qtbot, monkeypatch):
    asked = []

    def counted(config, found, method):
        asked.append(method)
        return plan(config, found, method)

    monkeypatch.setattr(plan_line, "plan", counted)
    line = make_line()
    for _ in range(3):
        line.want(Wanted(checkpoint, RunConfig(), ("mesp", "lean")))
    qtbot.waitUntil(lambda: "lean" in line.toPlainText())
    line.want(Wanted(checkpoint, RunConfig(), ("mesp", "lean")))
    qtbot.wait(50)
    assert asked == ["mesp", "lean"]
