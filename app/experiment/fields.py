"""A field: an editor with its label, and below it, when its value is wrong, what is wrong with it."""

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.widgets.plain import PlainLabel, plain_tooltip
from app.widgets.theme import level_color
from mesp_core.settings.setting import Setting

MARGIN = 2  # room for the mark


class Field(QWidget):
    """The base of all fields. `name` is RunConfig's; it is also the editor's object name, so a test finds it.

    A subclass has `value()` and `set_value(value)` and emits `changed` for either.
    """

    changed = Signal()

    def __init__(self, name: str, label: str, tooltip: str, editor: QWidget, unit: str = "") -> None:
        super().__init__()
        self.name, self.title, self.editor = name, label, editor
        self.setObjectName(f"field_{name}")
        self.label = QLabel(label)
        self.label.setBuddy(editor)
        editor.setObjectName(name)
        editor.setAccessibleName(f"{label} ({unit})" if unit else label)
        for widget in (editor, self.label):
            widget.setToolTip(plain_tooltip(tooltip))
        self.row = QHBoxLayout()
        self.row.addWidget(editor, 1)
        self._error = PlainLabel(f"error_{name}", "bad")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*[MARGIN] * 4)
        layout.setSpacing(2)
        layout.addLayout(self.row)
        layout.addWidget(self._error)

    def add_open_button(self, title: str, act: Callable[[], None]) -> None:
        """A button beside the editor that asks for a path; not an entry of its list, which an arrow key could pass."""
        button = QPushButton("Open…")
        button.setObjectName(f"open_{self.name}")
        button.setAccessibleName(title)
        button.setToolTip(title)
        button.clicked.connect(act)
        self.row.addWidget(button)

    @property
    def error(self) -> str:
        """What is wrong, "" if nothing is."""
        return self._error.text()

    def set_error(self, message: str) -> None:
        """Mark the field and say why; "" takes the mark away."""
        if message != self.error:
            self._error.set_text(message)
            self.editor.setAccessibleDescription(message)
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """A line around the editor while it is wrong: drawn here, so that the platform's own look stays."""
        if not self.error:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(level_color("bad"), 2))
        painter.drawRoundedRect(QRectF(self.editor.geometry()).adjusted(-1, -1, 1, 1), 3, 3)


class SettingField(Field):
    """The field of a setting, called and explained as that is declared."""

    def __init__(self, setting: Setting, editor: QWidget) -> None:
        super().__init__(setting.name, setting.label, setting.tooltip, editor, setting.unit)


class QuietWheel(QObject):
    """Lets the wheel scroll the panel, never change the box that happens to lie under the pointer.

    Not even one that has the focus: the first box has it from the start, and the last one used keeps it.
    """

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Ignored here, the event goes on to the scroll area."""
        if event.type() == QEvent.Type.Wheel:
            event.ignore()
            return True
        return False


def keep_quiet(box: QWidget) -> None:
    """The wheel neither changes the box nor gives it the focus."""
    box.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    box.installEventFilter(QuietWheel(box))
