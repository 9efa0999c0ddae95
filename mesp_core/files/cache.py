"""Where files that can be made again are kept."""

import os
from pathlib import Path

import platformdirs

from mesp_core.files.user_path import user_path


def cache_dir() -> Path:
    """The folder for everything that can be made again; it need not exist yet.

    `MESP_CACHE_DIR`, when set and not empty, replaces the user's cache folder.
    """
    override = os.environ.get("MESP_CACHE_DIR")
    if override:
        return user_path(override)
    return Path(platformdirs.user_cache_dir("mesp", appauthor=False))
