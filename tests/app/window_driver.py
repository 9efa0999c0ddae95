"""How tests drive the window: by the names of its parts, by keys and by mouse."""

import psutil
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QComboBox, QLabel, QPushButton, QTableView, QToolButton, QWidget

LEFT = Qt.MouseButton.LeftButton
A_RUN_MS = 90_000


def children():
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


def part(window, kind, name):
    found = window.findChild(kind, name)
    assert found is not None, name
    return found


def type_into(window, name, text, qtbot):
    """Type into a field by its object name, combo box or line edit."""
    editor = part(window, QWidget, name)
    line = editor.lineEdit() if isinstance(editor, QComboBox) else editor
    line.setFocus()
    line.selectAll()
    qtbot.keyClicks(line, text)
    qtbot.keyClick(line, Qt.Key.Key_Tab)


def small(window, qtbot, steps=5):
    """Rank 4, 64 tokens, the bundled model and data."""
    type_into(window, "rank", "4", qtbot)
    type_into(window, "seq_len", "64", qtbot)
    type_into(window, "steps", str(steps), qtbot)


def press(window, name, qtbot):
    button = part(window, QToolButton, name)
    assert button.isEnabled()
    qtbot.mouseClick(button, LEFT)


def summary(window):
    """heading -> the column's texts."""
    model = window.view.summary_tab.findChild(QTableView).model()
    return {
        model.headerData(column, Qt.Orientation.Horizontal): [
            model.index(row, column).data() for row in range(model.rowCount())
        ]
        for column in range(model.columnCount())
    }


def press_button(parent, text, qtbot):
    (button,) = (button for button in parent.findChildren(QPushButton) if button.text().replace("&", "") == text)
    qtbot.mouseClick(button, LEFT)


def visible_text(widget):
    labels = [label.text() for label in widget.findChildren(QLabel) if not label.isHidden()]
    views = [view.toPlainText() for view in widget.findChildren(QWidget) if hasattr(view, "toPlainText")]
    return "\n".join(labels + views)


def drop(window, *paths):
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    buttons, modifiers = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    window.dropEvent(QDropEvent(QPointF(50, 50), Qt.DropAction.CopyAction, mime, buttons, modifiers))
