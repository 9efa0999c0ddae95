"""A part of a page that is folded away until asked for."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton, QVBoxLayout, QWidget


class Fold(QWidget):
    """A button with an arrow; it shows and hides the widget below it."""

    def __init__(self, name: str, title: str, content: QWidget) -> None:
        super().__init__()
        self.setObjectName(f"fold_{name}")
        self._content = content
        self._button = QToolButton(text=title, autoRaise=True)
        self._button.setObjectName(name)
        self._button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        font = self._button.font()
        font.setBold(True)  # a heading, as those above
        self._button.setFont(font)
        self._button.clicked.connect(lambda: self.set_open(not self.is_open))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._button)
        layout.addWidget(content)
        self.set_open(False)

    @property
    def is_open(self) -> bool:
        """Whether the content shows."""
        return self._button.arrowType() == Qt.ArrowType.DownArrow

    def set_open(self, is_open: bool) -> None:
        """Show or hide the content."""
        self._button.setAccessibleDescription("open" if is_open else "closed")
        self._button.setArrowType(Qt.ArrowType.DownArrow if is_open else Qt.ArrowType.RightArrow)
        self._content.setVisible(is_open)
