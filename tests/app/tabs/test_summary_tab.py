"""The comparison table: values, the best in bold, the paper's rows, copying, plain text."""

import math

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QGuiApplication

from app.tabs.summary_tab import SummaryTab
from app.widgets.theme import method_color, set_appearance
from mesp_core.runs.paper import paper_figures, table_row
from mesp_core.runs.results import COLUMNS

KEYS = [column.key for column in COLUMNS]


def row(method, **values):
    return dict.fromkeys(KEYS) | {"method": method} | values


ROWS = [
    row("mebp", step_time_s=0.5, tokens_per_s=512.0, footprint_peak_mb=400.123456, training_memory_mb=380.0, final_loss=3.0),
    row("mesp", step_time_s=0.6, tokens_per_s=426.7, footprint_peak_mb=180.0, training_memory_mb=160.0, final_loss=2.0),
]


@pytest.fixture
def tab(shown):
    return shown(SummaryTab())


def cell(tab, number, key, role=Qt.ItemDataRole.DisplayRole):
    return tab.model.index(number, KEYS.index(key)).data(role)


def bold(tab):
    """The methods and columns in bold."""
    cells = set()
    for number in range(tab.model.rowCount()):
        for key in KEYS:
            font = cell(tab, number, key, Qt.ItemDataRole.FontRole)
            if isinstance(font, QFont) and font.bold():
                cells.add((cell(tab, number, "method"), key))
    return cells


def test_says_what_to_do_before_the_first_run_and_again_when_cleared(tab):
    assert tab.empty.isVisible() and "Run" in tab.empty.text()
    tab.show_rows(ROWS, [])
    assert tab.view.isVisible() and not tab.empty.isVisible()
    tab.clear()
    assert tab.empty.isVisible() and not tab.view.isVisible()


def test_shows_every_value_as_the_command_line_does_with_numbers_to_the_right(tab):
    tab.show_rows(ROWS, [])
    for number, values in enumerate(ROWS):
        assert [cell(tab, number, column.key) for column in COLUMNS] == [c.text(values[c.key]) for c in COLUMNS]
    for key in KEYS[1:]:
        assert cell(tab, 0, key, Qt.ItemDataRole.TextAlignmentRole) & Qt.AlignmentFlag.AlignRight.value
    assert cell(tab, 0, "method", Qt.ItemDataRole.DecorationRole) == method_color("mebp")


def test_the_best_of_a_column_is_bold_where_there_is_a_contest(tab):
    tab.show_rows(ROWS, [{"table": 1, "method": "mesp", "memory_mb": 1.0, "step_time_s": 0.001}])
    assert bold(tab) == {
        ("mebp", "step_time_s"),
        ("mebp", "tokens_per_s"),
        ("mesp", "footprint_peak_mb"),
        ("mesp", "training_memory_mb"),
    }  # neither the losses, for which lower is not better, nor the paper's smaller figures
    tab.show_rows(ROWS[:1], [])
    assert bold(tab) == set()
    tab.show_rows([ROWS[0], row("mesp", step_time_s=math.nan)], [])
    assert bold(tab) == set()


def test_what_reads_the_same_is_a_tie(tab):
    rows = [row("mebp", step_time_s=0.5001), row("mesp", step_time_s=0.5002), row("autodiff", step_time_s=0.7)]
    tab.show_rows(rows, [])
    assert bold(tab) == {("mebp", "step_time_s"), ("mesp", "step_time_s")}


def test_the_papers_figures_stand_beneath_and_are_dimmed(tab):
    paper = [table_row(figure) for figure in paper_figures()["figures"] if figure["table"] in (1, 2)][:8:7]
    tab.show_rows(ROWS, paper)
    assert cell(tab, 2, "method") == "mebp (paper, iPhone 17 Pro)"
    assert cell(tab, 2, "step_time_s") == "0.680" and cell(tab, 2, "footprint_peak_mb") == "360.8"
    assert cell(tab, 3, "step_time_s") == "–"  # table 2 has no times
    assert cell(tab, 2, "allocator_peak_mb") == "–"
    dimmed = cell(tab, 2, "method", Qt.ItemDataRole.ForegroundRole)
    assert dimmed is not None and cell(tab, 0, "method", Qt.ItemDataRole.ForegroundRole) is None
    assert "Table 1" in cell(tab, 2, "method", Qt.ItemDataRole.ToolTipRole)


def test_copies_the_selected_rows_or_all_with_all_digits(tab, qtbot):
    tab.show_rows(ROWS, [])
    qtbot.keyClick(tab.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines[0].split("\t") == [column.heading for column in COLUMNS]
    assert len(lines) == 3 and lines[1].split("\t")[KEYS.index("footprint_peak_mb")] == "400.123456"
    assert lines[1].split("\t")[KEYS.index("reduction")] == ""
    point = tab.view.visualRect(tab.model.index(1, 0)).center()
    qtbot.mouseClick(tab.view.viewport(), Qt.MouseButton.LeftButton, pos=point)
    tab.view.copy_action.trigger()  # as in the context menu
    assert [line.split("\t")[0] for line in QGuiApplication.clipboard().text().splitlines()] == ["method", "mesp"]
    assert tab.view.copy_action in tab.view.actions()


def test_every_column_is_explained(tab):
    tips = [
        tab.model.headerData(n, Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole)
        for n in range(tab.model.columnCount())
    ]
    assert all(tip.endswith(".") and len(tip) > 20 for tip in tips) and len(set(tips)) == len(COLUMNS)
    assert not any("<" in tip for tip in tips)


def test_a_selection_survives_the_next_figures_of_the_same_methods(tab):
    tab.show_rows(ROWS, [])
    tab.view.selectRow(1)
    tab.show_rows([ROWS[0], ROWS[1] | {"step_time_s": 0.4}], [])
    assert tab.view.selected_rows() == [1] and cell(tab, 1, "step_time_s") == "0.400"


def test_headings_take_two_lines_where_there_is_little_room_and_nothing_is_cut(tab, qtbot):
    tab.show_rows(ROWS, [])
    heading = KEYS.index("training_memory_mb")
    tab.resize(2000, 230)
    qtbot.waitUntil(lambda: "\n" not in tab.model.headerData(heading, Qt.Orientation.Horizontal))
    tab.resize(750, 230)
    qtbot.waitUntil(lambda: "\n" in tab.model.headerData(heading, Qt.Orientation.Horizontal))
    header = tab.view.horizontalHeader()
    assert header.length() <= tab.view.viewport().width()
    assert all(header.sectionSize(n) >= header.sectionSizeHint(n) for n in range(header.count()))


def test_colours_follow_the_appearance_and_rows_the_font(tab):
    tab.show_rows(ROWS, [])
    light, height = cell(tab, 1, "method", Qt.ItemDataRole.DecorationRole), tab.view.rowHeight(0)
    try:
        set_appearance("dark")
        assert cell(tab, 1, "method", Qt.ItemDataRole.DecorationRole) == method_color("mesp") != light
    finally:
        set_appearance("light")
    font = tab.font()
    font.setPointSizeF(2 * font.pointSizeF())
    tab.setFont(font)
    assert tab.view.rowHeight(0) > 1.5 * height
