"""What can be done, each with its text, shortcut and place in the menus and the toolbar."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QIcon, QKeySequence
from PySide6.QtWidgets import QApplication, QMainWindow, QStyle, QToolBar

from app.widgets.plain import plain_tooltip

_Theme, _Standard = QIcon.ThemeIcon, QStyle.StandardPixmap


STOP_TIP = "End the running step, keep what was done"
END_TIP = "End at once; what was not saved yet is lost"
# What every text field and table can do; on macOS the platform's own file panels are reached through these too.
_EDITING = {
    "Cu&t": ("cut", QKeySequence.StandardKey.Cut),
    "&Copy": ("copy", QKeySequence.StandardKey.Copy),
    "&Paste": ("paste", QKeySequence.StandardKey.Paste),
    "Select &All": ("selectAll", QKeySequence.StandardKey.SelectAll),
}


class Actions:
    """The window's actions as attributes; the window connects them."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        self.run = self._make("&Run", "Ctrl+R", "Run the ticked methods", _Theme.MediaPlaybackStart, _Standard.SP_MediaPlay)
        self.stop = self._make("&Stop", "Ctrl+.", STOP_TIP, _Theme.MediaPlaybackStop, _Standard.SP_MediaStop)
        self.open = self._make(
            "&Open…",
            "Ctrl+O",
            "Choose a data file, or any file of a model folder",
            _Theme.DocumentOpen,
            _Standard.SP_DialogOpenButton,
        )
        self.open_model = self._make("Open &Model Folder…", "Ctrl+Shift+O", "Choose a model folder")
        self.export_adapter = self._make(
            "Export &Adapter…",
            "Ctrl+E",
            "Copy a trained adapter to a folder of your own",
            _Theme.DocumentSaveAs,
            _Standard.SP_DialogSaveButton,
        )
        self.export_results = self._make(
            "Export Res&ults…",
            "Ctrl+Shift+E",
            "Save the comparison as JSON, CSV, Markdown or a picture",
            _Theme.DocumentSave,
            _Standard.SP_DriveHDIcon,
        )
        self.show_folder = self._make("Show Run &Folder", "Ctrl+Shift+R", "Open the folder of the last run")
        self.settings = self._make("&Settings…", "Ctrl+,", "Where runs go, and how the window looks")
        self.settings.setMenuRole(QAction.MenuRole.PreferencesRole)
        self.close = self._make("&Close", QKeySequence.StandardKey.Close, "Close the window")
        self.minimize = self._make("&Minimize", "Ctrl+M", "Minimize the window")
        self.quit = self._make("&Quit", QKeySequence.StandardKey.Quit, "Quit")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.about = self._make("&About mesp-gui", None, "Versions")
        self.about.setMenuRole(QAction.MenuRole.AboutRole)
        self._fill_menus()
        self._fill_toolbar()

    def offer_end(self, offer: bool) -> None:
        """Whether Stop now means to end at once."""
        self.stop.setText("&End Now" if offer else "&Stop")
        self.stop.setStatusTip(END_TIP if offer else STOP_TIP)
        self.explain(self.stop, "")

    def explain(self, action: QAction, why_not: str) -> None:
        """Give the reason why an action is disabled as its tooltip; its usual one where `why_not` is empty."""
        keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        usual = f"{action.statusTip()} ({keys})" if keys else action.statusTip()
        action.setToolTip(plain_tooltip(why_not) or usual)

    def _make(
        self,
        text: str,
        shortcut: str | QKeySequence.StandardKey | None,
        tip: str,
        theme: QIcon.ThemeIcon | None = None,
        standard: QStyle.StandardPixmap | None = None,
    ) -> QAction:
        action = QAction(text, self._window)
        action.setMenuRole(QAction.MenuRole.NoRole)  # never let the platform guess from the text
        if shortcut is not None:
            action.setShortcut(QKeySequence(shortcut))
        action.setStatusTip(tip)
        self.explain(action, "")
        if theme is not None:
            action.setIcon(QIcon.fromTheme(theme, self._window.style().standardIcon(standard)))
        return action

    def _fill_menus(self) -> None:
        bar = self._window.menuBar()
        file = bar.addMenu("&File")
        file.addActions([self.open, self.open_model])
        file.addSeparator()
        file.addActions([self.export_adapter, self.export_results, self.show_folder])
        file.addSeparator()
        file.addActions([self.settings, self.close, self.quit])
        edit = bar.addMenu("&Edit")
        for text, (method, shortcut) in _EDITING.items():
            action = self._make(text, shortcut, "")
            action.triggered.connect(lambda _checked=False, method=method: _on_focus(method))
            edit.addAction(action)
        bar.addMenu("&Run").addActions([self.run, self.stop])
        self.view_menu = bar.addMenu("&View")
        bar.addMenu("&Window").addAction(self.minimize)
        bar.addMenu("&Help").addAction(self.about)

    def _fill_toolbar(self) -> None:
        toolbar: QToolBar = self._window.addToolBar("Toolbar")
        toolbar.setObjectName("toolbar")
        toolbar.setMovable(False)
        toolbar.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._window.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # else the toolbar can be hidden for good
        toolbar.addActions([self.run, self.stop])
        toolbar.addSeparator()
        toolbar.addAction(self.open)
        toolbar.addSeparator()
        toolbar.addActions([self.export_adapter, self.export_results])
        for action in (self.run, self.stop, self.open, self.export_adapter, self.export_results):
            toolbar.widgetForAction(action).setObjectName(f"tool_{action.text().strip('…').replace('&', '').lower()}")


def _on_focus(method: str) -> None:
    """Have the widget with the focus do it, if it can."""
    act = getattr(QApplication.focusWidget(), method, None)
    if act is not None:
        act()
