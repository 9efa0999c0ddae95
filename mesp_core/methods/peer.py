"""What is used of mlx-lm, imported in the one place that can.

At its import mlx-lm asks for a limit of 4096 open files, and fails where the system allows fewer, as under `ulimit -n 1024`.
The limit that there is serves as well.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def _limits_as_they_can_be() -> Iterator[None]:
    """Inside, a limit that cannot be set stays what it is."""
    set_limit = resource.setrlimit

    def try_to_set(*arguments: object) -> None:
        with suppress(ValueError, OSError):
            set_limit(*arguments)

    resource.setrlimit = try_to_set
    try:
        yield
    finally:
        resource.setrlimit = set_limit


with _limits_as_they_can_be():
    from mlx_lm.tuner.trainer import grad_checkpoint
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import dequantize_model, load_model

__all__ = ["dequantize_model", "grad_checkpoint", "linear_to_lora_layers", "load_model"]
