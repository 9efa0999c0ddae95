"""Paths as people type them. Loads no MLX."""

import os
from pathlib import Path


def user_path(text: str | Path) -> Path:
    """The absolute path that was typed, `~` being home. Never raises: what cannot be is a path that does not exist.

    Test it with os.path.isfile and the like: Path's own raise for a name that is too long or a folder that is locked.
    """
    return Path(os.path.abspath(os.path.expanduser(text)))
