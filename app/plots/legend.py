"""Whose colour is whose, with the values of now; entries go on to the next line where a window is narrow."""

import html
from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLayout, QLayoutItem, QSizePolicy, QWidget

LINE, DASHES, DIAMOND = "line", "dashes", "diamond"


class Legend(QWidget):
    """One entry a method: swatch, name, value; then what the other signs in the plot mean."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: dict[str, _Entry] = {}
        self._signs: list[_Entry] = []
        self._color: Callable[[str], QColor] = lambda _: self.palette().text().color()
        self._flow = _Flow(self)

    def begin(self, methods: Sequence[str], color: Callable[[str], QColor], signs: Sequence[tuple[str, str]] = ()) -> None:
        """New entries. `color(method)` is asked again whenever the palette changes; `signs`: (shape, meaning)."""
        while item := self._flow.takeAt(0):
            item.widget().hide()
            item.widget().deleteLater()
        self._color = color
        self._entries = {method: _Entry(LINE, method, self) for method in methods}
        self._signs = [_Entry(shape, meaning, self, value=False) for shape, meaning in signs]
        if self._signs:
            self._signs[0].starts_line = True
        for entry in (*self._entries.values(), *self._signs):
            self._flow.addWidget(entry)
            entry.show()
        self.recolor()

    def show_value(self, method: str, text: str) -> None:
        """The value behind the method's name."""
        self._entries[method].show_value(text)

    def values(self) -> dict[str, str]:
        """The values shown, by method."""
        return {method: entry.value.text() for method, entry in self._entries.items()}

    def recolor(self) -> None:
        """Take the colours anew."""
        for method, entry in self._entries.items():
            entry.swatch.paint_in(self._color(method))
        for entry in self._signs:
            entry.swatch.paint_in(self.palette().text().color())

    def changeEvent(self, event: QEvent) -> None:
        """Follow the palette; the plot that holds the legend hears of it before the legend has its new one."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self.recolor()


class _Entry(QWidget):
    starts_line = False

    def __init__(self, shape: str, name: str, parent: QWidget, value: bool = True) -> None:
        super().__init__(parent)
        self.setObjectName(f"legend-{name}")
        self.swatch, self.name, self.value = _Swatch(shape, self), _Elided(name, self), QLabel(self)
        self.value.setTextFormat(Qt.TextFormat.PlainText)
        self.value.setObjectName(f"legend-value-{name}")
        self.value.setAccessibleName(name)
        self.value.setVisible(value)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(self.fontMetrics().averageCharWidth())
        for widget in (self.swatch, self.name, self.value):
            row.addWidget(widget)

    def show_value(self, text: str) -> None:
        # Of a fixed size that only grows: a label that changes its size with every value has the window laid out anew.
        wanted = self.fontMetrics().size(0, text)
        if wanted.width() > self.value.width() or self.value.minimumWidth() != self.value.maximumWidth():
            self.value.setFixedSize(wanted.width() + self.fontMetrics().averageCharWidth(), wanted.height())
        self.value.setText(text)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and self.value.text():
            self.value.setFixedSize(self.fontMetrics().size(0, self.value.text()))


class _Elided(QLabel):
    """A name that gives way where there is no room; then its tooltip has all of it."""

    def __init__(self, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._whole = text
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setAccessibleName(text)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setText(text)

    def sizeHint(self) -> QSize:
        return self.fontMetrics().size(0, self._whole)

    def minimumSizeHint(self) -> QSize:
        return QSize(3 * self.fontMetrics().averageCharWidth(), self.sizeHint().height())

    def resizeEvent(self, event: QEvent) -> None:
        super().resizeEvent(event)
        shown = self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideMiddle, self.width())
        self.setText(shown)
        self.setToolTip("" if shown == self._whole else f"<qt>{html.escape(self._whole)}</qt>")


class _Swatch(QWidget):
    def __init__(self, shape: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._shape, self._color = shape, QColor()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        height = self.fontMetrics().height()
        return QSize(height // 2 if self._shape == DIAMOND else height, height)

    def paint_in(self, color: QColor) -> None:
        self._color = color
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        middle, height = self.rect().toRectF().center(), self.height()
        if self._shape == DIAMOND:
            size = height / 4
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self._color)
            corners = ((0, -size), (size, 0), (0, size), (-size, 0))
            painter.drawPolygon(QPolygonF([middle + type(middle)(x, y) for x, y in corners]))
        else:
            dashes = self._shape == DASHES
            pen = QPen(self._color, 1.2 if dashes else height / 4, Qt.PenStyle.DashLine if dashes else Qt.PenStyle.SolidLine)
            pen.setCapStyle(Qt.PenCapStyle.FlatCap)
            painter.setPen(pen)
            painter.drawLine(0, round(middle.y()), self.width(), round(middle.y()))


class _Flow(QLayout):
    """Entries from left to right, going on below where the width ends or an entry starts a line."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), move=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, move=True)

    def sizeHint(self) -> QSize:
        sizes = [item.sizeHint() for item in self._items]
        gap = self._gap()
        return QSize(sum(size.width() + gap for size in sizes), max((size.height() for size in sizes), default=0))

    def minimumSize(self) -> QSize:
        sizes = [item.minimumSize() for item in self._items]
        return QSize(max((size.width() for size in sizes), default=0), max((size.height() for size in sizes), default=0))

    def _gap(self) -> int:
        parent = self.parentWidget()
        return 2 * parent.fontMetrics().averageCharWidth() if parent else 12

    def _place(self, rect: QRect, move: bool) -> int:
        """Give every widget its place, if asked to; returns the height needed."""
        x, y, line_height, gap = rect.x(), rect.y(), 0, self._gap()
        for item in self._items:
            size = item.sizeHint()
            size.setWidth(min(size.width(), max(rect.width(), item.minimumSize().width())))
            if x > rect.x() and (item.widget().starts_line or x + size.width() > rect.x() + rect.width()):
                x, y, line_height = rect.x(), y + line_height, 0
            if move:
                item.setGeometry(QRect(QPoint(x, y), size))
            x += size.width() + gap
            line_height = max(line_height, size.height())
        return y + line_height - rect.y()
