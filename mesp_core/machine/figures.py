"""This machine's measured figures, kept in the cache folder, so that they are taken once. Loads no MLX.

They are measured by bench/machine_figures.py, in both kernels at once; whoever plans only reads them.
"""

import functools
import json
import math
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from mesp_core.errors import MespError
from mesp_core.files.cache import cache_dir
from mesp_core.files.whole_file import write_whole
from mesp_core.machine.device import chip_name, find_openblas
from mesp_core.machine.model import MachineModel

FORMAT_VERSION = 1
SOURCE = "measured"


@dataclass(frozen=True)
class Shapes:
    """What the speed of a model's products depends on.

    `bits` and `group_size` are None where its matrices are plain. `tokens`: rows of what they are multiplied with; a few
    more or less are no other figures, see `rounded`.
    """

    hidden: int
    intermediate: int
    bits: int | None
    group_size: int | None
    dtype: str
    tokens: int

    @classmethod
    def rounded(cls, tokens: int) -> int:
        """A power of two near to `tokens`, between 32 and 256, beyond which nothing gets faster."""
        return 1 << min(8, max(5, round(math.log2(tokens))))


def model(figures: dict[str, Any]) -> MachineModel:
    """Figures by their names -> the machine. Raises TypeError or ValueError if one is missing, or is none that can be."""
    numbers = {name: value for name, value in figures.items() if name != "gpu"}
    for name, value in numbers.items():
        if not math.isfinite(value) or value < 0 or (value == 0 and not name.endswith("_s")):
            raise ValueError(f"{name}: {value} is no figure of a machine")
    return MachineModel(name=_chip(), source=SOURCE, measured=True, **figures)


def cached(shapes: Shapes) -> MachineModel | None:
    """What was measured here for such a model with this MLX and BLAS; None if nothing was, or it cannot be read."""
    try:
        kept = json.loads(_file(shapes).read_text("utf-8"))
        return model(kept["figures"]) if kept["key"] == _key(shapes) else None
    except (OSError, ValueError, KeyError, TypeError, MespError):
        return None


def keep(shapes: Shapes, figures: dict[str, Any]) -> MachineModel:
    """Keep what was measured, and give it back as a model.

    Raises:
        TypeError, ValueError: if these are no figures.
        MespError: if they cannot be written.
    """
    found = model(figures)
    write_whole(_file(shapes), json.dumps({"key": _key(shapes), "figures": figures}, indent=2) + "\n")
    return found


def _key(shapes: Shapes) -> dict[str, Any]:
    blas = find_openblas()
    return {
        "version": FORMAT_VERSION,
        "chip": _chip(),
        "cores": os.cpu_count(),
        "mlx": metadata.version("mlx"),
        "blas": "" if blas is None else str(blas),
        **asdict(shapes),
    }


@functools.cache
def _chip() -> str:
    """Asked once: on macOS it takes a process."""
    return chip_name()


def _file(shapes: Shapes) -> Path:
    digest = sha256(json.dumps(_key(shapes), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "machine" / f"{digest}.json"
