"""One axis of a plot: its label and its tick labels never lie on each other, however small the plot and large the text."""

import math
from collections.abc import Sequence

import pyqtgraph as pg
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QFont, QFontMetrics

from app.plots.quantity import Quantity, short_power


class Axis(pg.AxisItem):
    """An axis without SI prefixes; one of a whole quantity has no ticks between whole numbers.

    A label for which there is no room gives way to the unit alone, to a shorter unit, then to its beginning; the tooltip
    has all of it.
    """

    _quantity: Quantity | None = None  # pyqtgraph asks for sizes while it is still building its part

    def __init__(self, orientation: str, quantity: Quantity) -> None:
        super().__init__(orientation, maxTickLength=-4)
        self._quantity = quantity
        self.enableAutoSIPrefix(False)
        self.setLabel(quantity.labels[0])
        self.setToolTip(quantity.labels[0])
        self.setStyle(maxTickLevel=0, autoExpandTextSpace=False)

    def take_font(self, font: QFont) -> None:
        """Write label and ticks in this font, at distances that go with it."""
        height = QFontMetrics(font).height()
        # so that the lowest label of the left axis and the first one of the bottom axis stay apart
        self.setStyle(tickTextOffset=round(0.4 * height if self.orientation == "left" else 0.3 * height))
        self.label.setFont(font)
        self.setTickFont(font)
        self.resizeEvent()

    def hide_values(self) -> None:
        """Keep only the grid: the plot below has the same axis."""
        self.setStyle(showValues=False)
        self.showLabel(False)

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:
        """pyqtgraph's choice, made wider until there is room for the labels."""
        span = maxVal - minVal
        if not math.isfinite(span) or span <= 0:
            return []
        spacing = max(super().tickSpacing(minVal, maxVal, size)[0][0], 1.0 if self._quantity.whole else 0.0)
        while not self._roomy(minVal, maxVal, size, spacing):
            wider = spacing * (2.5 if f"{spacing:e}"[0] == "2" else 2)  # 1, 2, 5, 10, …
            if math.ceil(minVal / wider) > math.floor(maxVal / wider):
                break  # better one label than none
            spacing = wider
        return [(spacing, 0.0)]

    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, Sequence[float]]]:
        """All multiples of the spacing; a single one where there is no room for two."""
        levels = super().tickValues(minVal, maxVal, size)
        return [
            (spacing, values if self._roomy(minVal, maxVal, size, spacing) else values[:1]) for spacing, values in levels
        ]

    def tickStrings(self, values: list[float], scale: float, spacing: float) -> list[str]:
        """pyqtgraph's, with short powers of ten."""
        return [short_power(text) for text in super().tickStrings(values, scale, spacing)]

    def labelString(self) -> str:
        """pyqtgraph's, without the blank that it leaves for a unit of its own."""
        return super().labelString().replace(" </span>", "</span>")

    def overhang(self) -> int:
        """Pixels that half a tick label may stand out at either end."""
        return self._metrics().horizontalAdvance("000000") // 2 if self.orientation == "bottom" else self._metrics().height()

    def boundingRect(self) -> QRectF:
        """With room for the half of a label that stands out at either end; without it the 0 is not drawn."""
        out, rect = self.overhang(), super().boundingRect()
        return rect.adjusted(0, -out, 0, out) if self.orientation == "left" else rect.adjusted(-out, 0, out, 0)

    def resizeEvent(self, event: object = None) -> None:
        """Choose the label that fits, then place it, inside of the axis to the last pixel."""
        if self._quantity is None or self.label is None:
            return
        text = self._fitting()
        if text != self.labelText:
            self.labelText = text
            self.label.setHtml(self.labelString())
        super().resizeEvent(event)
        margin = self.label.document().documentMargin()
        if self.orientation == "left":
            self.label.setX(-margin)
        else:
            self.label.setY(self.size().height() - self.label.boundingRect().height() + margin)

    def _fitting(self) -> str:
        metrics = QFontMetrics(self.label.font())
        # beside the plot there is some room above and below it, which the lowest and the highest tick label need
        upright = self.size().height() + 0.75 * metrics.height()
        length = round(upright if self.orientation == "left" else self.size().width())
        *longer, shortest = self._quantity.labels
        fitting = (text for text in longer if metrics.horizontalAdvance(text) <= length)
        return next(fitting, "") or metrics.elidedText(shortest, Qt.TextElideMode.ElideRight, length)

    def _roomy(self, low: float, high: float, size: float, spacing: float) -> bool:
        """Whether labels at this spacing stay apart on an axis of so many pixels."""
        metrics = self._metrics()
        if self.orientation == "left":
            room = 1.4 * metrics.height()
        else:
            ends = [math.ceil(low / spacing) * spacing, math.floor(high / spacing) * spacing]
            room = max(map(metrics.horizontalAdvance, self.tickStrings(ends, 1.0, spacing))) + metrics.horizontalAdvance(
                "00"
            )
        return spacing / (high - low) * size >= room

    def _metrics(self) -> QFontMetrics:
        return QFontMetrics(self.style["tickFont"] or QFont())
