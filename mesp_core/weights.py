"""Serving an opened checkpoint's tensors as MLX arrays: block by block from the file (`streamed`) or held (`resident`)."""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mesp_core.checkpoint import Checkpoint, LinearEntry
from mesp_core.config import PROJECTIONS
from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import BLOCK_NORMS, EMBEDDING, norm_path, projection_path
from mesp_core.ops import frozen_matmul
from mesp_core.ops.cross_entropy import Head
from mesp_core.ops.frozen_matmul import FrozenLinear
from mesp_core.ops.self_check import Verdict, check_kernel
from mesp_core.safetensors import TensorEntry

# safetensors type -> (numpy type that has its size, MLX type)
DTYPES = {
    "F32": (np.float32, mx.float32),
    "F16": (np.float16, mx.float16),
    "BF16": (np.uint16, mx.bfloat16),
    "U32": (np.uint32, mx.uint32),
}
FLOAT_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


UsedShapes = Callable[[str, FrozenLinear], Sequence[FrozenLinear]]


@dataclass(frozen=True)
class Block:
    """One block's weights: its projections and its norms, by their names in the architecture."""

    linears: dict[str, FrozenLinear]
    norms: dict[str, mx.array]

    def traced(self) -> "Block":
        """The same weights, for use inside a function that MLX differentiates."""
        return Block({name: replace(linear, traced=True) for name, linear in self.linears.items()}, self.norms)


class Weights:
    """The tensors of one checkpoint: norms and biases in `dtype`, matrices as they are stored.

    Files are mapped, so that a page read costs no footprint; what is served is a copy that lives as long as its name.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: mx.Dtype, kernel: str = "auto", resident: bool = False) -> None:
        self.checkpoint, self.dtype, self.resident = checkpoint, dtype, resident
        self.kernel = kernel if kernel != "auto" else default_kernel()
        self.verdicts: dict[str, Verdict] = {}
        self._kernels: dict[tuple, str] = {}
        self._held: dict[object, Block | FrozenLinear] = {}
        self._maps = {file: _map(checkpoint, file) for file in checkpoint.fingerprints}

    def check_kernels(self, tokens: int, shapes: UsedShapes = lambda name, linear: [linear]) -> None:
        """Try the quantised kernel once for each kind of layer, `tokens` rows at a time; fall back where it is wrong.

        `shapes(name, linear)` gives the layer in every shape that it is multiplied in, itself and parts of it.
        The findings are in `verdicts`. Nothing to do where row-blocked dequantising is used anyway.
        """
        if self.kernel != "quantized":
            return
        self._held.clear()  # whatever was served before was served unchecked
        for entry in self.checkpoint.linears.values():
            kind = self._kind(entry)
            only_looked_up = entry.path == EMBEDDING and entry is not self.checkpoint.head
            if entry.bits is None or only_looked_up or kind in self._kernels:
                continue
            used = shapes(entry.name, self._linear(entry))
            verdict = check_kernel(used, tokens, self._operand_dtype(entry))
            self._kernels[kind] = verdict.kernel
            self.verdicts[_describe(entry)] = verdict

    def block(self, layer: int) -> Block:
        """The weights of one block.

        Raises:
            CheckpointError: if a file changed since the checkpoint was opened.
        """
        return self._serve(layer, lambda: self._read_block(layer))

    def head(self) -> Head:
        """The output projection (vocab × hidden), whose rows are read as they are needed."""
        entry = self.checkpoint.head
        if self.resident:
            return Head.of(self._serve("head", lambda: self._linear(entry)))

        def part(start: int, stop: int) -> FrozenLinear:
            return frozen_matmul.outputs(self._linear(entry, slice(start, stop)), 0, stop - start)

        def rows(ids: np.ndarray) -> mx.array:
            return frozen_matmul.dequantized_rows(self._linear(entry, ids), slice(None))

        return Head(entry.out_features, self._kernels.get(self._kind(entry), self.kernel), part, rows)

    def final_norm(self) -> mx.array:
        """The weight (hidden) of the norm before the head."""
        return self._array(self.checkpoint.norms["model.norm"]).astype(self.dtype)

    def embed(self, ids: np.ndarray) -> mx.array:
        """ids (B × L) -> embedding rows (B × L × hidden); only the rows asked for are read."""
        entry = self.checkpoint.linears[EMBEDDING]
        rows, inverse = np.unique(ids, return_inverse=True)
        values = frozen_matmul.dequantized_rows(self._linear(entry, rows), slice(None)).astype(self.dtype)
        return values[mx.array(inverse.reshape(ids.shape).astype(np.int32))]

    def _serve(self, key: object, read):  # noqa: ANN001 (whatever `read` gives)
        if key in self._held:
            return self._held[key]
        value = read()
        if self.resident:
            self._held[key] = value
        return value

    def _read_block(self, layer: int) -> Block:
        linears = {name: self._linear(self.checkpoint.linears[projection_path(layer, name)]) for name in PROJECTIONS}
        norms = {name: self._array(self.checkpoint.norms[norm_path(layer, name)]).astype(self.dtype) for name in BLOCK_NORMS}
        return Block(linears, norms)

    def _linear(self, entry: LinearEntry, rows: slice | np.ndarray = slice(None)) -> FrozenLinear:
        """A layer, or some rows of it."""
        arrays = {name: self._array(tensor, rows) for name, tensor in entry.tensors.items()}
        if "bias" in arrays:
            arrays["bias"] = arrays["bias"].astype(self.dtype)
        kernel = self._kernels.get(self._kind(entry), self.kernel)
        return FrozenLinear(**arrays, bits=entry.bits, group_size=entry.group_size, kernel=kernel)

    def _operand_dtype(self, entry: LinearEntry) -> mx.Dtype:
        """The head multiplies float32 rows whatever the activations are, see ops/cross_entropy.py."""
        return mx.float32 if entry is self.checkpoint.head else self.dtype

    def _kind(self, entry: LinearEntry) -> tuple:
        """What a kernel's correctness may depend on: shape, parts (by the name), quantisation and dtype."""
        dtype = str(self._operand_dtype(entry))
        return (entry.name, entry.in_features, entry.out_features, entry.bits, entry.group_size, dtype)

    def _array(self, entry: TensorEntry, rows: slice | np.ndarray = slice(None)) -> mx.array:
        """A copy of a tensor, or of some of its rows."""
        self.checkpoint.check_unchanged(entry.file)
        numpy_dtype, dtype = DTYPES[entry.dtype]
        count = entry.nbytes // np.dtype(numpy_dtype).itemsize
        view = np.frombuffer(self._maps[entry.file], numpy_dtype, count, entry.offset).reshape(entry.shape)
        array = mx.array(view[rows])
        return array.view(dtype) if dtype == mx.bfloat16 else array


def default_kernel() -> str:
    """`quantized` on a GPU, `dequantize` on the CPU, where MLX's quantised product is 10 to 20 times slower."""
    return "dequantize" if mx.default_device().type == mx.DeviceType.cpu else "quantized"


def _map(checkpoint: Checkpoint, file: Path) -> mmap.mmap:
    checkpoint.check_unchanged(file)
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error


def _describe(entry: LinearEntry) -> str:
    return f"{entry.name} {entry.in_features}→{entry.out_features}, {entry.bits} bits, group {entry.group_size}"
