"""What the app remembers: window geometry, last experiment, recent files, and a person's choices."""

import json
import os
from pathlib import Path

import platformdirs
from PySide6.QtCore import QByteArray, QSettings

from app.experiment.experiment import Experiment
from app.widgets.theme import APPEARANCES
from mesp_core.errors import MespError

RECENT = 8
TEXT_SIZES = (80, 90, 100, 110, 125, 150, 175, 200)  # per cent


class Settings:
    """A typed face for QSettings. What is stored and cannot be used any more counts as not stored."""

    def __init__(self, store: QSettings | None = None) -> None:
        self._store = store or QSettings("mesp", "mesp-gui")

    @property
    def out_folder(self) -> Path:
        """Where runs leave their results, each in a folder of its own."""
        stored = self._store.value("out_folder", "", str)
        return Path(stored) if stored else Path(platformdirs.user_documents_dir()) / "mesp"

    @out_folder.setter
    def out_folder(self, folder: Path) -> None:
        self._store.setValue("out_folder", str(folder))

    @property
    def appearance(self) -> str:
        """system, light or dark."""
        stored = self._store.value("appearance", "system", str)
        return stored if stored in APPEARANCES else "system"

    @appearance.setter
    def appearance(self, appearance: str) -> None:
        self._store.setValue("appearance", appearance)

    @property
    def text_size(self) -> int:
        """Per cent of the system's."""
        try:
            stored = int(self._store.value("text_size", 100))
        except (TypeError, ValueError):
            return 100
        return stored if stored in TEXT_SIZES else 100

    @text_size.setter
    def text_size(self, percent: int) -> None:
        self._store.setValue("text_size", percent)

    @property
    def experiment(self) -> Experiment | None:
        """The last one that was whole."""
        try:
            return Experiment.from_dict(json.loads(self._store.value("experiment", "", str)))
        except (MespError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @experiment.setter
    def experiment(self, experiment: Experiment) -> None:
        self._store.setValue("experiment", json.dumps(experiment.to_dict()))

    def recent(self, kind: str) -> list[str]:
        """The last few `models` or `data` that were used and are still there, newest first."""
        try:
            stored = json.loads(self._store.value(f"recent_{kind}", "[]", str))
        except ValueError:
            return []
        if not isinstance(stored, list):
            return []
        return [path for path in stored if isinstance(path, str) and os.path.exists(path)]

    def remember(self, kind: str, path: str) -> None:
        """Put a file or folder at the front of the recent ones; anything else (tiny, a hub id) is not a path."""
        if os.path.isabs(path) and os.path.exists(path):
            paths = [path, *(other for other in self.recent(kind) if other != path)]
            self._store.setValue(f"recent_{kind}", json.dumps(paths[:RECENT]))

    def layout(self, name: str) -> QByteArray:
        """A stored geometry or splitter state; empty if there is none."""
        stored = self._store.value(f"layout/{name}")
        return stored if isinstance(stored, QByteArray) else QByteArray()

    def set_layout(self, name: str, state: QByteArray) -> None:
        """Store a geometry or splitter state."""
        self._store.setValue(f"layout/{name}", state)

    def sync(self) -> None:
        """Write to disk now."""
        self._store.sync()
