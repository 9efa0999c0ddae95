"""Copying an adapter to where a person wants it, whole or not at all. Loads no MLX."""

import os
import shutil
from pathlib import Path

from mesp_core.adapters.folder import CONFIG_FILE, OF_THE_SYSTEM, WEIGHTS_FILE, replacing
from mesp_core.errors import MespError, UsageError

ADAPTER_FILES = (CONFIG_FILE, WEIGHTS_FILE)


def export_adapter(source: Path, target: Path) -> None:
    """Copy the adapter in the folder `source` to the folder `target`, which is made, or replaced if it holds an adapter.

    Raises:
        UsageError: `source` holds no adapter, or `target` is something else than an adapter folder or an empty folder, with
            nothing in it that is not an adapter's: it would be lost.
        MespError: the copy cannot be written; `target` is then as it was.
    """
    source, target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    for name in ADAPTER_FILES:
        if not (source / name).is_file():
            raise UsageError(f"adapter: {source} holds no {name}, so there is no adapter to export.")
    if target.is_relative_to(source):
        raise UsageError(f"target: {target} is the adapter that is exported, or lies in it; name another folder.")
    try:
        _check_replaceable(target)
        with replacing(target) as folder:
            for name in ADAPTER_FILES:
                shutil.copyfile(source / name, folder / name)
    except OSError as error:
        raise MespError(f"target: {target} cannot be written ({error.strerror or error}); name another folder.") from error


def _check_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"target: {target} is a file; name a folder.")
    names = {path.name for path in target.iterdir()} - set(OF_THE_SYSTEM)
    if names and CONFIG_FILE not in names:
        raise UsageError(f"target: {target} is a folder that holds something else than an adapter; name another.")
    if others := sorted(names - set(ADAPTER_FILES)):
        raise UsageError(f"target: {target} holds {others[0]} beside an adapter, which would be lost; name another folder.")
