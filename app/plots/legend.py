"""Whose colour is whose, with the values of now; entries go on to the next line where a window is narrow."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QLabel, QLayout, QLayoutItem, QWidget

from app.widgets.plain import plain_tooltip

LINE, DASHES, DIAMOND = "line", "dashes", "diamond"
LETTERS = 9  # that are left of a name where there is no room


class Legend(QWidget):
    """One entry a method: swatch, name, value; then what the other signs in the plot mean."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: dict[str, _Entry] = {}
        self._signs: list[_Entry] = []
        self._begun: tuple = ()
        self._color: Callable[[str], QColor] = lambda _: self.palette().text().color()
        self._flow = _Flow(self)

    def begin(self, methods: Sequence[str], color: Callable[[str], QColor], signs: Sequence[tuple[str, str]] = ()) -> None:
        """New entries. `color(method)` is asked again whenever the palette changes; `signs`: (shape, meaning)."""
        if self._entries and (tuple(methods), tuple(signs)) == self._begun:  # making widgets is slow
            for entry in self._entries.values():
                entry.show_value("")
            return
        self._begun = (tuple(methods), tuple(signs))
        while item := self._flow.takeAt(0):
            item.widget().hide()
            item.widget().deleteLater()
        self._color = color
        self._entries = {method: _Entry(LINE, method, self) for method in methods}
        self._signs = [_Entry(shape, meaning, self) for shape, meaning in signs]
        if self._signs:
            self._signs[0].starts_line = True
        for entry in (*self._entries.values(), *self._signs):
            self._flow.addWidget(entry)
            entry.show()
        self.recolor()

    def show_value(self, method: str, text: str, short: str = "") -> None:
        """The value behind the method's name; `short` is shown where there is no room for `text`."""
        self._entries[method].show_value(text, short or text)

    def values(self) -> dict[str, str]:
        """The whole values, by method."""
        return {method: entry.text for method, entry in self._entries.items()}

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
    """Swatch, name and value in a row. First the value is shortened where there is no room, then the name."""

    starts_line = False

    def __init__(self, shape: str, name: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName(f"legend-{name}")
        self._whole, self.text, self._short = name, "", ""
        self._widest = [0, 0]  # of text and short: room only grows, as values that change their place cannot be read
        self.swatch, self._name, self._value = _Swatch(shape, self), QLabel(self), QLabel(self)
        for label, purpose in ((self._name, "name"), (self._value, "value")):
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setObjectName(f"legend-{purpose}-{name}")
            label.setAccessibleName(name)

    def show_value(self, text: str, short: str = "") -> None:
        self.text, self._short = text, short
        widths = [max(self._advance(shown), before) for shown, before in zip((text, short), self._widest, strict=True)]
        if widths != self._widest:
            self._widest = widths
            self.updateGeometry()
        self._place()

    def sizeHint(self) -> QSize:
        return QSize(self._width(self._advance(self._whole), self._widest[0]), self.fontMetrics().height())

    def minimumSizeHint(self) -> QSize:
        name = min(self._advance(self._whole), LETTERS * self.fontMetrics().averageCharWidth())
        return QSize(self._width(name, self._widest[1]), self.fontMetrics().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "_widest"):
            self._widest = [self._advance(self.text), self._advance(self._short)]
            self.updateGeometry()
            self._place()

    def _place(self) -> None:
        roomy = self.width() >= self.sizeHint().width()
        gap, height = self._gap(), self.height()
        swatch, value = self.swatch.sizeHint().width(), self._widest[0 if roomy else 1]
        name = min(self._advance(self._whole), max(0, self.width() - self._width(0, value)))
        shown = self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideMiddle, name)
        self._name.setText(shown)
        self._value.setText(self.text if roomy else self._short)
        self.setToolTip(plain_tooltip("" if roomy else f"{self._whole} {self.text}".strip()))
        self.swatch.setGeometry(0, 0, swatch, height)
        self._name.setGeometry(swatch + gap, 0, name, height)
        self._value.setGeometry(swatch + gap + name + gap, 0, value, height)

    def _width(self, name: int, value: int) -> int:
        return self.swatch.sizeHint().width() + self._gap() + name + (self._gap() + value if value else 0)

    def _gap(self) -> int:
        return self.fontMetrics().averageCharWidth()

    def _advance(self, text: str) -> int:
        return self.fontMetrics().size(0, text).width()


class _Swatch(QWidget):
    def __init__(self, shape: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._shape, self._color = shape, QColor()

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
        """As wide as the widest entry when shortened; as high as it then takes, so that nothing is ever cut off."""
        width = max((item.minimumSize().width() for item in self._items), default=0)
        return QSize(width, self.heightForWidth(width))

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
