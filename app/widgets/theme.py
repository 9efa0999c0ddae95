"""Colours: one for every method, the same in every plot, table and legend; light and dark."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from mesp_core.methods.registry import METHODS

APPEARANCES = ("system", "light", "dark")

# The palette that methods' records choose from: (on a light ground, on a dark ground). Told apart by people who see few
# colours, too.
_METHODS = (
    ("#d55e00", "#ff9445"),
    ("#0072b2", "#5bb8f5"),
    ("#009e73", "#3fd6a9"),
    ("#aa4499", "#e48bd4"),
    ("#2a1166", "#8f5cff"),
    # of methods to come
    ("#007f8c", "#4fd0dd"),
    ("#6b5b00", "#d6c24a"),
    ("#9e1b54", "#ff7fb0"),
)
# for methods with options, in the order they come
_OTHERS = (("#b8860b", "#f0c75e"), ("#5e4fa2", "#a99df0"), ("#7a7a7a", "#b5b5b5"), ("#8c2d04", "#f0956a"))

# of the device strip's bar and of messages
_LEVELS = {"good": ("#2e8b57", "#4fc37f"), "warning": ("#d98200", "#ffb347"), "bad": ("#c62828", "#ff6b6b")}


def is_dark() -> bool:
    """Whether the application's palette is a dark one."""
    return QGuiApplication.palette().color(QPalette.ColorRole.Window).lightness() < 128


def method_color(method: str, others: list[str] | tuple[str, ...] = ()) -> QColor:
    """A method's colour on the ground of now. `others`: all methods shown, to give those with options one each."""
    if method in METHODS:
        pair = _METHODS[METHODS[method].color]
    else:
        unnamed = [name for name in others if name not in METHODS]
        pair = _OTHERS[unnamed.index(method) % len(_OTHERS) if method in unnamed else 0]
    return QColor(pair[is_dark()])


def level_color(level: str) -> QColor:
    """The colour of good, warning or bad on the ground of now."""
    return QColor(_LEVELS[level][is_dark()])


def mixed(color: QColor, ground: QColor, share: float) -> QColor:
    """`color` thinned with the ground it stands on. Opaque: transparent pens are slow."""
    parts = zip(color.getRgbF()[:3], ground.getRgbF()[:3], strict=True)
    return QColor.fromRgbF(*(share * ink + (1 - share) * paper for ink, paper in parts))


def set_appearance(appearance: str) -> None:
    """Follow the system, or be light or dark whatever the system is."""
    scheme = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}.get(appearance, Qt.ColorScheme.Unknown)
    hints = QGuiApplication.styleHints()
    hints.setColorScheme(scheme)
    # Some platforms have no theme that could do this; there we bring the palette ourselves.
    if scheme != Qt.ColorScheme.Unknown and hints.colorScheme() != scheme:
        QApplication.setPalette(_dark_palette() if appearance == "dark" else QApplication.style().standardPalette())
    elif scheme == Qt.ColorScheme.Unknown:
        QApplication.setPalette(QPalette())


def _dark_palette() -> QPalette:
    palette = QPalette(QColor("#36363a"), QColor("#333337"))
    role = QPalette.ColorRole
    colors = {
        role.Base: "#1e1e20",
        role.AlternateBase: "#27272b",
        role.Text: "#f0f0f0",
        role.WindowText: "#f0f0f0",
        role.ButtonText: "#f0f0f0",
        role.BrightText: "#ffffff",
        role.ToolTipBase: "#47474b",
        role.ToolTipText: "#f0f0f0",
        role.PlaceholderText: "#98989d",
        role.Highlight: "#2f6fd6",
        role.HighlightedText: "#ffffff",
        role.Link: "#6cb2ff",
    }
    for name, color in colors.items():
        palette.setColor(name, QColor(color))
    for name in (role.Text, role.WindowText, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, name, QColor("#7d7d82"))
    return palette
