"""Draws the application's icon: two memory curves, the second far lower.

QT_QPA_PLATFORM=offscreen python assets/make_icon.py
"""

from pathlib import Path

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage, QLinearGradient, QPainter, QPainterPath, QPen

SIZE = 512
OUT = Path(__file__).parent / "icon.png"


def curve(height: float) -> QPainterPath:
    """A rise, a plateau and a small fall, `height` (0 to 1) of the drawing area high."""
    left, right, floor = 96.0, 416.0, 396.0
    top = floor - height * 270
    path = QPainterPath(QPointF(left, floor))
    path.cubicTo(QPointF(left + 70, floor), QPointF(left + 60, top), QPointF(left + 140, top))
    path.cubicTo(QPointF(left + 220, top), QPointF(right - 90, top + 30), QPointF(right, top + 34))
    return path


def main() -> None:
    """Write icon.png."""
    QGuiApplication([])
    image = QImage(SIZE, SIZE, QImage.Format.Format_ARGB32)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    ground = QLinearGradient(0, 0, 0, SIZE)
    ground.setColorAt(0, QColor("#2d3440"))
    ground.setColorAt(1, QColor("#171b22"))
    painter.setBrush(ground)
    painter.setPen(Qt.PenStyle.NoPen)
    # Apple's grid: the shape fills 824 of 1024 pixels.
    painter.drawRoundedRect(QRectF(50, 50, 412, 412), 92, 92)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    for height, color in ((0.92, "#ff9445"), (0.38, "#5bb8f5")):
        painter.setPen(QPen(QColor(color), 30, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin))
        painter.drawPath(curve(height))
    painter.end()
    if not image.save(str(OUT)):
        raise SystemExit(f"{OUT} cannot be written")


if __name__ == "__main__":
    main()
