"""What a GPU does in one kernel, and whether it is trusted to.

A fused kernel saves launches and memory, and can be wrong on one device. A kind that was found wrong is not trusted:
everybody who asks here then takes the plain way.
"""

from collections.abc import Callable, Iterable
from functools import wraps

import mlx.core as mx

from mesp_core.device import counting
from mesp_core.device.in_use import on_gpu

# MLX's own kernels for attention and norms; and chains of elementwise operations that mx.compile makes one of.
ATTENTION, NORM, ELEMENTWISE = "attention", "norm", "elementwise"

_distrusted: set[str] = set()


def trusted(kind: str) -> bool:
    """Whether a kind of fused kernel is to be used here."""
    return on_gpu() and kind not in _distrusted


def distrust(kinds: Iterable[str]) -> None:
    """Use none of these kinds any more, and all others."""
    _distrusted.clear()
    _distrusted.update(kinds)


def one_kernel(function: Callable) -> Callable:
    """A function of arrays (or None) that only works element by element, as one kernel where that is trusted."""
    compiled = mx.compile(function)

    @wraps(function)
    def chosen(*args):
        return (compiled if trusted(ELEMENTWISE) else function)(*args)

    return chosen


def own_kernel(function: Callable) -> Callable:
    """A function that is one kernel of MLX's on a GPU, and counted as one where the CPU makes a graph of it."""

    @wraps(function)
    def counted(*args):
        counting.counts_as_one(function, args)
        return function(*args)

    return counted
