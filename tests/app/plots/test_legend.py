"""The legend of a plot."""

from plot_driver import METHODS
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication, QLabel, QWidget

from app.plots.legend import Legend
from app.widgets.plain import plain_tooltip
from app.widgets.theme import method_color


def test_a_narrow_legend_goes_on_below_then_shortens_values_then_names(qtbot):
    window = QWidget()
    qtbot.addWidget(window)
    legend = Legend(window)
    name = "autodiff:grad-checkpoint <b>"
    legend.begin(["mebp", name], method_color)
    for method in ("mebp", name):
        legend.show_value(method, "now 1.2 · peak 3.4 MB", "peak 3.4 MB")
    letter = legend.fontMetrics().averageCharWidth()
    window.resize(200 * letter, 200)
    window.show()

    def shown(width):
        """The texts at this width; all of them are where they can be seen."""
        legend.setGeometry(0, 0, width, legend.heightForWidth(width))
        QApplication.processEvents()
        labels = [label for label in legend.findChildren(QLabel) if label.isVisible() and label.text()]
        assert all(legend.rect().contains(label.geometry().translated(label.parent().pos())) for label in labels)
        assert all(label.fontMetrics().horizontalAdvance(label.text()) <= label.width() for label in labels)
        return [label.text() for label in labels]

    wide, whole = legend.sizeHint().width() + 4 * letter, ["now 1.2 · peak 3.4 MB", "now 1.2 · peak 3.4 MB"]
    assert shown(wide) == ["mebp", whole[0], name, whole[1]]
    one_line = legend.height()
    entry = legend.findChild(QWidget, f"legend-{name}")
    assert shown(entry.sizeHint().width()) == ["mebp", whole[0], name, whole[1]]
    assert legend.height() == 2 * one_line
    assert entry.toolTip() == ""
    assert shown(entry.sizeHint().width() - letter) == ["mebp", whole[0], name, "peak 3.4 MB"]
    assert entry.toolTip() == plain_tooltip(f"{name} {whole[1]}")
    narrowest = legend.minimumSizeHint()
    *_, short, value = shown(narrowest.width())
    assert "…" in short and short.startswith("au") and value == "peak 3.4 MB"
    assert legend.height() == narrowest.height()
    assert legend.values() == {"mebp": whole[0], name: whole[1]}


def test_a_legend_keeps_its_entries_for_the_same_methods_only(qtbot):
    legend = Legend()
    qtbot.addWidget(legend)

    def entries():
        QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        return {child.objectName() for child in legend.children() if child.objectName().startswith("legend-")}

    legend.begin(METHODS, method_color)
    legend.show_value("mebp", "1.0")
    legend.begin(METHODS, method_color)
    assert legend.values() == {"mebp": "", "mesp": ""}
    legend.begin(METHODS, method_color, [("dashes", "peak")])
    assert entries() == {"legend-mebp", "legend-mesp", "legend-peak"}
    legend.begin(["mesp"], method_color)
    assert entries() == {"legend-mesp"}
