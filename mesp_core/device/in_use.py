"""Which kind of device computes. All that is done otherwise on a GPU asks here."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

_forced = False


def on_gpu() -> bool:
    """Whether the engine goes the way of a GPU: small kernels are dear there, waiting is dearer, products are cheap."""
    return _forced or mx.default_device().type != mx.DeviceType.cpu


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Go the way of a GPU inside, whatever computes: the same numbers, counts and sizes, only slowly."""
    global _forced
    before, _forced = _forced, True
    try:
        yield
    finally:
        _forced = before
