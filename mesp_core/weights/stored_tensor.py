"""A tensor that stays in its file until some of it is asked for."""

import mmap
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mesp_core.device.evaluation import copied_from_file
from mesp_core.models.safetensors import TensorEntry

# safetensors type -> (numpy type that has its size, MLX type)
DTYPES = {
    "F32": (np.float32, mx.float32),
    "F16": (np.float16, mx.float16),
    "BF16": (np.uint16, mx.bfloat16),
    "U32": (np.uint32, mx.uint32),
}

Part = slice | tuple[slice, slice] | np.ndarray | mx.array


class StoredTensor:
    """A tensor in a mapped safetensors file. Indexing it reads that part, and no more, as an array of its own.

    `check_unchanged` is asked before each read, and raises if the file is not what it was.
    """

    def __init__(self, entry: TensorEntry, mapping: mmap.mmap, check_unchanged: Callable[[], None]) -> None:
        numpy_dtype, self.dtype = DTYPES[entry.dtype]
        count = entry.nbytes // np.dtype(numpy_dtype).itemsize
        self._view = np.frombuffer(mapping, numpy_dtype, count, entry.offset).reshape(entry.shape)
        self._check_unchanged = check_unchanged

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._view.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self._view.ndim

    @property
    def nbytes(self) -> int:
        """What the whole tensor would take in memory."""
        return self._view.nbytes

    def __getitem__(self, part: Part) -> mx.array:
        """Rows, rows and columns, or rows by their ids -> a copy of these.

        Raises:
            CheckpointError: if the file changed or is gone.
        """
        self._check_unchanged()
        # Of a strided view MLX would copy what lies between its rows too, so columns are put side by side first.
        chosen = np.ascontiguousarray(self._view[np.array(part) if isinstance(part, mx.array) else part])
        array = mx.array(chosen)
        copied_from_file(chosen.nbytes)
        return array.view(self.dtype) if self.dtype == mx.bfloat16 else array
