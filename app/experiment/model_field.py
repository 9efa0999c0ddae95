"""The model: where it is, what it is, and how it comes here."""

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QFileDialog

from app.experiment.facts import Found, facts, find
from app.experiment.fetch_bar import FetchBar
from app.experiment.fields import SettingField
from app.experiment.place_box import PlaceBox
from app.threads.background import Latest, Report, sentence
from app.widgets.path_dialog import path_dialog
from app.widgets.plain import PlainLabel
from mesp_core.files.user_path import user_path
from mesp_core.models.source import list_cached_models, resolve
from mesp_core.models.synthetic import GEOMETRIES
from mesp_core.settings.run_config import SETTINGS

LIST_AFTER_MS = 300  # the window comes first
CACHED, RECENT = 1, 2  # groups of the list


class ModelField(SettingField):
    """`find`, `fetch` and `list_cached` do what their defaults do; tests replace them. All run in the background."""

    looked = Signal()  # `found`, `missing` or `problem` is another

    def __init__(
        self,
        recent: Sequence[str] = (),
        find: Callable[[str], Found | None] = find,
        fetch: Callable[[str, Report], Any] = resolve,
        list_cached: Callable[[], Sequence[str]] = list_cached_models,
    ) -> None:
        self.box = PlaceBox(
            [("tiny", "Tiny (bundled)")],
            [],
            [(model, model) for model in recent],
            [(f"synthetic:{name}", f"synthetic:{name}") for name in GEOMETRIES],
        )
        super().__init__(SETTINGS["model"], self.box)
        self._find = find
        self.found: Found | None = None
        self.missing = False  # it must be fetched or made first
        self.problem = ""
        self.add_open_button("Open a model folder", self.open_folder)
        self._facts, self._warning = PlainLabel("model_facts"), PlainLabel("model_warning", "warning")
        self._fetch_bar = FetchBar(fetch)
        for widget in (self._facts, self._warning, self._fetch_bar):
            self.layout().addWidget(widget)

        self._lookup, self._listing = Latest(self), Latest(self)
        self._lookup.done.connect(self._note_found)
        self._lookup.failed.connect(lambda error: self._note(problem=sentence(error)))
        self._listing.done.connect(lambda models: self.box.set_group(CACHED, [(model, model) for model in models]))
        self._fetch_bar.fetched.connect(self.look)
        self._fetch_bar.failed.connect(lambda message: self._note(missing=True, problem=message))
        self.box.chosen.connect(self._choose)
        self.box.again.connect(self.look)
        self._list_later = QTimer(self, singleShot=True, interval=LIST_AFTER_MS)
        self._list_later.timeout.connect(lambda: self._listing.start(lambda _: list_cached()))
        self._list_later.start()

    def value(self) -> str:
        """What RunConfig.model is."""
        return self.box.value()

    def set_value(self, model: str) -> None:
        """Choose a model; the one of before is looked up again."""
        self.box.set_value(model)

    def look(self) -> None:
        """Find out, in the background, what the model is."""
        model = self.value()
        self._fetch_bar.withdraw()
        self._note(says="Looking…")
        self._lookup.start(lambda _: self._find(model))

    def stop_fetching(self) -> None:
        """A run is about to fetch for itself."""
        self._fetch_bar.cancel()

    def open_folder(self) -> None:
        """Ask for a folder; nothing waits for the answer."""
        start, mode = _start_folder(self.found), QFileDialog.FileMode.Directory
        dialog = path_dialog(self, "Open a model folder", mode, self.set_value, start, "open_model_dialog")
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.open()

    def close_background(self) -> None:
        """End the threads."""
        self._list_later.stop()
        for latest in (self._lookup, self._listing):
            latest.close()
        self._fetch_bar.close_background()

    def _choose(self) -> None:
        self.look()
        self.changed.emit()

    def _note_found(self, found: Found | None) -> None:
        if found is None:
            self._fetch_bar.offer(self.value())
            self._note(missing=True)
            return
        if found.source.kind in ("directory", "hub"):
            self.box.remember(RECENT, self.value())
        self._note(found=found, says=facts(found.checkpoint))

    def _note(self, *, found: Found | None = None, missing: bool = False, problem: str = "", says: str = "") -> None:
        self.found, self.missing, self.problem = found, missing, problem
        self._facts.set_text(says)
        self._warning.set_text((found.source.warning or "") if found else "")
        self.set_error(problem)
        self.looked.emit()


def _start_folder(found: Found | None) -> str:
    """The folder beside which the next model probably is."""
    return str(found.source.path.parent if found and found.source.kind == "directory" else user_path("~"))
