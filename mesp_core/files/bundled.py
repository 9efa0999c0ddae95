"""Where what comes along is, checkpoint, sample, icon: inside the package in a wheel, beside it in a source tree."""

from pathlib import Path
from typing import Literal

from mesp_core.errors import MespError

_PACKAGE = Path(__file__).resolve().parent.parent
_IN_WHEEL = {"tiny": "_bundled/tiny", "sample": "_bundled/sample.jsonl", "icon": "_bundled/icon.png"}
_IN_SOURCE = {"tiny": "assets/tiny", "sample": "data/sample.jsonl", "icon": "assets/icon.png"}


def bundled_path(name: Literal["tiny", "sample", "icon"]) -> Path:
    """The folder of the tiny checkpoint, the sample .jsonl file or the icon. Raises MespError when the install lacks it."""
    candidates = [_PACKAGE / _IN_WHEEL[name]]
    if (_PACKAGE.parent / "pyproject.toml").is_file():  # else the parent is site-packages, whose data/ is not ours
        candidates.append(_PACKAGE.parent / _IN_SOURCE[name])
    for path in candidates:
        if path.is_dir() if name == "tiny" else path.is_file():
            return path
    looked = " or ".join(str(path) for path in candidates)
    raise MespError(f"The bundled '{name}' is missing from this installation (looked for {looked}). Install mesp again.")
