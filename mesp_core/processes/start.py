"""Starting our own modules in a child process with the right BLAS and allocator order. Loads no MLX."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import mesp_core
from mesp_core.machine.device import find_openblas


def child_environment(blas: Path | None) -> dict[str, str]:
    """The environment of a process that computes.

    MLX otherwise evaluates up to 20 independent branches of a graph side by side, so that many temporaries live at once;
    depth first it frees each before it makes the next (measured: 8 instead of 19 MB in one frozen product).
    """
    environment = dict(os.environ)
    environment.setdefault("MLX_BFS_MAX_WIDTH", "1")
    # Newer GPUs otherwise multiply "float32" with 10 bits of mantissa.
    environment.setdefault("MLX_ENABLE_TF32", "0")
    environment["PYTHONUNBUFFERED"] = "1"
    # The package we are, wherever the child starts.
    root = str(Path(mesp_core.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    if blas is not None:
        environment["LD_PRELOAD"] = os.pathsep.join([str(blas), *filter(None, [environment.get("LD_PRELOAD")])])
    return environment


def start_module(module: str, *arguments: str, blas: Path | None = None, inherited: Sequence[int] = ()) -> subprocess.Popen:
    """`python -m module` with pipes on all three streams, in a group of its own: a Ctrl-C here is not one there.

    `inherited` are the file descriptors that it is given beside them.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=child_environment(blas),
        start_new_session=True,
        pass_fds=inherited,
    )


def blas_for_child() -> tuple[Path | None, str]:
    """The BLAS to preload into a child (None: none) and a sentence that says so."""
    if not sys.platform.startswith("linux"):
        return None, "BLAS: the system's own."
    blas = find_openblas()
    if blas is None and os.environ.get("MESP_BLAS"):
        return None, "BLAS: MLX's own, as MESP_BLAS asks."
    if blas is None:
        return None, (
            "BLAS: no OpenBLAS found, so matrix products take about 15 times longer. "
            "Install libopenblas0-pthread (Debian, Ubuntu) or name a library with MESP_BLAS."
        )
    return blas, f"BLAS: preloading {blas}."
