"""When a worker writes its adapter, and what becomes of it where that fails."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mesp_core.adapters.adapter import save_adapter
from mesp_core.adapters.folder import OURS
from mesp_core.engine.method import AdapterTree
from mesp_core.errors import MespError
from mesp_core.files.cache import cache_dir
from mesp_core.machine.memory import MB
from mesp_core.methods.names import folder_name
from mesp_core.settings.run_config import RunConfig


class AdapterSaver:
    """Writes `adapters` to `folder`: each `save_every` steps, and whenever it is told to.

    `log` hears (level, message); `on_saved` the step and the folder of each adapter that was written. `saved` is the step
    of the last one, 0 for none.
    """

    def __init__(
        self,
        folder: Path,
        adapters: AdapterTree,
        config: RunConfig,
        num_layers: int,
        log: Callable[[str, str], None],
        on_saved: Callable[[int, Path], None],
    ) -> None:
        self.folder, self.saved = folder, 0
        self._adapters, self._config, self._num_layers = adapters, config, num_layers
        self._log, self._on_saved = log, on_saved

    def try_place(self) -> None:
        """See that the adapter can be written where it is to go, before any work is done for it.

        Raises:
            MespError: if it cannot, or the disk has no room for it.
        """
        place = self.folder.parent
        needed = sum(array.nbytes for pair in self._adapters.values() for array in pair.values())
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place):
                free = shutil.disk_usage(place).free
            str(self.folder).encode()
        except (OSError, ValueError) as error:
            raise MespError(
                f"{self.folder}: the adapter cannot be written ({getattr(error, 'strerror', None) or error})."
            ) from error
        self._refuse_another()
        if free < needed:
            raise MespError(
                f"{place}: the adapter will need {needed / MB:,.1f} MB and {free / MB:,.1f} MB are free. "
                "Make room, or name another folder with --out."
            )

    def save_if_due(self, step: int) -> None:
        """Between a step and the next. A failure is told and the run goes on: there will be another time to save."""
        every = self._config.save_every
        if not every or step <= self.saved or step % every:
            return
        try:
            self._write(self.folder, step)
        except MespError as error:
            self._log("warning", f"{error} The run goes on; the adapter is saved again later.")

    def save(self, step: int) -> None:
        """Write the adapter of this step, if it has not been; to the cache folder where its own cannot be written.

        Raises:
            MespError: if it could not be written to its folder; says where it is instead.
        """
        if step <= self.saved:
            return
        try:
            self._write(self.folder, step)
        except MespError as error:
            # The process too: runs that share a disk which is full may all end within the second.
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{folder_name(self._config.method)}"
            for shelter in (cache_dir() / "rescued", Path(tempfile.gettempdir()) / "mesp-rescued"):
                try:
                    self._write(shelter / name, step)
                except MespError:
                    continue
                raise MespError(f"{error} It was saved in {shelter / name} instead.") from error
            raise

    def save_after_failure(self, step: int) -> None:
        """As `save`, while another error is on its way to the person: what goes wrong here is only logged."""
        try:
            self.save(step)
        except MespError as error:
            self._log("warning", str(error))

    def _refuse_another(self) -> None:
        """Raises MespError if what is in the adapter's place is not of this run."""
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise MespError(f"{self.folder}: the adapter cannot be written (there is a file of that name).")
        if not self.saved and (there := [name for name in OURS if os.path.lexists(self.folder / name)]):
            raise MespError(f"{self.folder}: the adapter cannot be written (there is another one's {there[0]}).")

    def _write(self, folder: Path, step: int) -> None:
        if folder == self.folder:
            self._refuse_another()
        save_adapter(folder, self._adapters, self._config, self._num_layers, step)
        self.saved = step
        self._on_saved(step, folder)
