"""A line across the window that says what happened, with buttons for what can be done about it."""

from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QStyle, QToolButton, QWidget

from app.widgets.plain import PlainLabel, plain_tooltip

_ICONS = {
    "info": QStyle.StandardPixmap.SP_MessageBoxInformation,
    "warning": QStyle.StandardPixmap.SP_MessageBoxWarning,
    "error": QStyle.StandardPixmap.SP_MessageBoxCritical,
}


class MessageBar(QFrame):
    """Shows the latest message until it is closed or another takes its place. Always plain text."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("message_bar")
        self.setFrameShape(QFrame.Shape.StyledPanel)
        self._icon = QLabel()
        self._label = PlainLabel("message")  # a long path must not make the window wider than the screen
        close = QToolButton(autoRaise=True, toolTip="Close this message", objectName="close_message")
        close.setIcon(self.style().standardIcon(QStyle.StandardPixmap.SP_TitleBarCloseButton))
        close.setAccessibleName("Close this message")
        close.clicked.connect(self.hide)
        self._buttons = QHBoxLayout()
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 4, 4, 4)
        row.addWidget(self._icon)
        row.addWidget(self._label, 1)
        row.addLayout(self._buttons)
        row.addWidget(close)
        self.level = ""
        self.hide()

    @property
    def text(self) -> str:
        """The message shown now, "" if none is."""
        return "" if self.isHidden() else self._label.text()

    def show_message(
        self, level: str, text: str, actions: Sequence[tuple[str, Callable[[], None]]] = (), details: str = ""
    ) -> None:
        """`level` is info, warning or error; `actions` are buttons: (label, what it does); `details` a longer text."""
        self.level = level
        size = self.style().pixelMetric(QStyle.PixelMetric.PM_SmallIconSize)
        self._icon.setPixmap(self.style().standardIcon(_ICONS[level]).pixmap(size, size))
        self._label.set_text(text)
        self._label.setToolTip(plain_tooltip(details))
        while (item := self._buttons.takeAt(0)) is not None:
            item.widget().hide()
            item.widget().deleteLater()
        for label, act in actions:
            button = QPushButton(label)
            button.clicked.connect(lambda _checked=False, act=act: act())
            self._buttons.addWidget(button)
        self.show()
