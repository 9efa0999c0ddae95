"""Why a loss or gradient is not a finite number: the checkpoint holds such, the type is too short, or the run diverged."""

import math
from collections.abc import Iterator

import numpy as np

from mesp_core.errors import CheckpointError, MespError, NotFiniteError
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.models.safetensors import TensorEntry

NUMBERS_AT_ONCE = 1 << 20
# safetensors type -> (numpy type of its size, the bits of its exponent: all set where a number is NaN or infinite)
EXPONENTS = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}


def first_non_finite(checkpoint: Checkpoint) -> str | None:
    """A sentence on the first tensor, in the order of the model, with a number that is not finite; None if all are.

    Reads norms, scales, biases and plain weights from their files, 4 MB at a time.

    Raises:
        CheckpointError: if a file is not what it was when the checkpoint was opened.
    """
    for entry in _float_tensors(checkpoint):
        checkpoint.check_unchanged(entry.file)
        if (count := _count(entry)) > 0:
            return (
                f"{entry.file}: tensor {entry.name} holds NaN or infinity ({count:,} of its {math.prod(entry.shape):,} "
                "numbers). Download or convert the model again."
            )
    return None


def explained(error: NotFiniteError, checkpoint: Checkpoint, dtype: str) -> MespError:
    """The error to tell instead, in a run whose activations are of `dtype`."""
    found = first_non_finite(checkpoint)
    if found is not None:
        return CheckpointError(found)
    if error.what == "loss" and error.step == 1:
        advice = "Is it a whole model?" if dtype == "float32" else "Set dtype to float32."
        return MespError(
            f"The loss is {error.value} at step 1, before anything was learnt: the model's numbers are finite, but what is "
            f"computed from them overflows in {dtype}. {advice}"
        )
    if dtype == "float16":
        return MespError(f"{error} Or set dtype to float32: float16 overflows above 65,504.")
    return error


def _float_tensors(checkpoint: Checkpoint) -> Iterator[TensorEntry]:
    for linear in checkpoint.linears.values():
        yield from (entry for entry in linear.tensors.values() if entry.dtype in EXPONENTS)
    yield from checkpoint.norms.values()


def _count(entry: TensorEntry) -> int:
    """How many numbers of a tensor are not finite."""
    dtype, exponent = EXPONENTS[entry.dtype]
    left, found = math.prod(entry.shape), 0
    with entry.file.open("rb") as stream:
        stream.seek(entry.offset)
        while left > 0:
            numbers = np.fromfile(stream, dtype, min(left, NUMBERS_AT_ONCE))
            if not len(numbers):
                break  # cut short: for the next read of it to say
            found += int(np.count_nonzero((numbers & exponent) == exponent))
            left -= len(numbers)
    return found
