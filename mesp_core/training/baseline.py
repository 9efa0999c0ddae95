"""What a worker holds before it opens anything: whatever a run adds to it is training memory."""

import os
from collections.abc import Iterable

import mlx.core as mx

from mesp_core.machine.footprint import read_footprint
from mesp_core.machine.memory import MB
from mesp_core.methods.record import Record


def baseline_mb(methods: Iterable[Record]) -> float:
    """MB that this process holds with all that `methods` import and a device that has computed once.

    MLX's buffer cache is off from here on: it counts in the footprint.
    """
    mx.set_cache_limit(0)
    for method in methods:
        method.kind.load()
    _warm_up()
    return read_footprint(os.getpid()).current / MB


def _warm_up() -> None:
    """Have MLX load what it loads once: on a GPU its kernel library, heap and command queue, on a CPU BLAS's buffers."""
    ones = mx.ones((16, 16))
    mx.eval(ones @ ones)
    del ones
    mx.clear_cache()
