"""Serving an opened checkpoint's tensors as MLX arrays.

Block by block from the file (`streamed`), held (`resident`), or left in the pages of a mapped copy (`mapped`, mapped.py).
"""

import mmap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from mesp_core.device.in_use import on_gpu
from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import EMBEDDING, PROJECTIONS, norm_path, projection_path
from mesp_core.models.checkpoint import Checkpoint, LinearEntry
from mesp_core.models.safetensors import TensorEntry
from mesp_core.ops import frozen_matmul
from mesp_core.ops.cross_entropy import Head
from mesp_core.ops.frozen_matmul import FrozenLinear
from mesp_core.ops.self_check import Verdict, check_kernel
from mesp_core.weights import mapped
from mesp_core.weights.stored_tensor import StoredTensor

FLOAT_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
MODES = ("streamed", "resident", "mapped")

UsedShapes = Callable[[str, FrozenLinear], Sequence[FrozenLinear]]


def _as_a_whole(name: str, linear: FrozenLinear) -> list[FrozenLinear]:
    return [frozen_matmul.outputs(linear, 0, linear.out_features)]


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

    Files are mapped, so that a page read costs no footprint. `streamed` serves copies that live as long as their names;
    `resident` and `mapped` serve the same arrays again. `fallback` says why `mapped` was asked for and is not used.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: mx.Dtype, kernel: str = "auto", mode: str = "streamed") -> None:
        """Raises CheckpointError if a file cannot be read, MespError if `mapped` cannot write its copy."""
        assert mode in MODES, mode
        self.checkpoint, self.dtype = checkpoint, dtype
        self.kernel = kernel if kernel != "auto" else default_kernel()
        self.verdicts: dict[str, Verdict] = {}
        self._kernels: dict[tuple, str] = {}
        self._held: dict[object, Block | FrozenLinear] = {}
        self._maps = {file: _map(checkpoint, file) for file in checkpoint.fingerprints}
        self.fallback = mapped.why_not() if mode == "mapped" else None
        self.mode = mode if self.fallback is None else "streamed"
        self._mapped = mapped.open_copy(checkpoint, self._maps) if self.mode == "mapped" else {}

    @property
    def mapped_bytes(self) -> int:
        """Bytes that MLX counts as allocated although they are pages of a file: `mapped` arrays."""
        return sum(mapped.in_pages(array.nbytes) for array in self._mapped.values())

    def check_kernels(self, tokens: int, shapes: UsedShapes = _as_a_whole, more_rows: Collection[int] = ()) -> None:
        """Try the quantised kernel once for each kind of layer, `tokens` rows at a time; fall back where it is wrong.

        `shapes(name, linear)` gives a layer that lies in its file in every shape that it is multiplied in: as a whole,
        in parts, in the blocks it is read in. The findings are in `verdicts`. Nothing to do where row-blocked
        dequantising is used anyway.
        """
        if self.kernel != "quantized":
            return
        self._held.clear()  # whatever was served before was served unchecked
        for entry in self.checkpoint.linears.values():
            kind = self._kind(entry)
            only_looked_up = entry.path == EMBEDDING and entry is not self.checkpoint.head
            if entry.bits is None or only_looked_up or kind in self._kernels:
                continue
            used = shapes(entry.name, self._stored_linear(entry))
            verdict = check_kernel(used, tokens, self._operand_dtype(entry), more_rows)
            self._kernels[kind] = verdict.kernel
            self.verdicts[_describe(entry)] = verdict

    def block(self, layer: int) -> Block:
        """The weights of one block, whole.

        Raises:
            CheckpointError: if a file changed since the checkpoint was opened.
        """
        return self._serve(layer, lambda: self._block(layer, self._whole_linear))

    def lazy_block(self, layer: int) -> Block:
        """The weights of one block; `streamed` leaves its matrices in the file, and what is asked of them is read then.

        Not for use inside a function that MLX differentiates. Raises CheckpointError if a file changed, here or later.
        """
        return self._block(layer, self._stored_linear) if self.mode == "streamed" else self.block(layer)

    def head(self) -> Head:
        """The output projection (vocab × hidden), whose rows are read as they are needed."""
        entry = self.checkpoint.head
        if self.mode == "streamed":
            return Head.of(self._stored_linear(entry))
        return Head.of(self._serve("head", lambda: self._whole_linear(entry)))

    def final_norm(self) -> mx.array:
        """The weight (hidden) of the norm before the head."""
        return self._norm("model.norm")

    def embed(self, ids: np.ndarray) -> mx.array:
        """ids (B × L) -> embedding rows (B × L × hidden); only the rows asked for are read."""
        entry = self.checkpoint.linears[EMBEDDING]
        rows, inverse = np.unique(ids, return_inverse=True)
        values = frozen_matmul.dequantized_rows(self._stored_linear(entry), rows).astype(self.dtype)
        return values[mx.array(inverse.reshape(ids.shape).astype(np.int32))]

    def _serve(self, key: object, read):  # noqa: ANN001 (whatever `read` gives)
        if key in self._held:
            return self._held[key]
        value = read()
        if self.mode != "streamed":
            self._held[key] = value
        return value

    def _block(self, layer: int, linear: Callable[[LinearEntry], FrozenLinear]) -> Block:
        linears = {name: linear(self.checkpoint.linears[projection_path(layer, name)]) for name in PROJECTIONS}
        norms = self.checkpoint.architecture.block_norms()
        return Block(linears, {name: self._norm(norm_path(layer, name)) for name in norms})

    def _norm(self, path: str) -> mx.array:
        return self._stored(self.checkpoint.norms[path])[:].astype(self.dtype)

    def _stored_linear(self, entry: LinearEntry) -> FrozenLinear:
        """A layer whose matrices lie in the file; its bias is read."""
        tensors = {name: self._stored(tensor) for name, tensor in entry.tensors.items()}
        if "bias" in tensors:
            tensors["bias"] = tensors["bias"][:].astype(self.dtype)
        kernel = self._kernels.get(self._kind(entry), self.kernel)
        return FrozenLinear(**tensors, bits=entry.bits, group_size=entry.group_size, kernel=kernel)

    def _whole_linear(self, entry: LinearEntry) -> FrozenLinear:
        """A layer whose matrices are arrays: the mapped ones, or copies."""
        stored = self._stored_linear(entry)
        names = [name for name in entry.tensors if name != "bias"]
        arrays = {n: self._mapped[entry.tensors[n].name] if self._mapped else getattr(stored, n)[:] for n in names}
        return replace(stored, **arrays)

    def _operand_dtype(self, entry: LinearEntry) -> mx.Dtype:
        """The head multiplies float32 rows whatever the activations are, see ops/cross_entropy.py."""
        return mx.float32 if entry is self.checkpoint.head else self.dtype

    def _kind(self, entry: LinearEntry) -> tuple:
        """What a kernel's correctness may depend on: shape, parts (by the name), quantisation and dtype."""
        dtype = str(self._operand_dtype(entry))
        return (entry.name, entry.in_features, entry.out_features, entry.bits, entry.group_size, dtype)

    def _stored(self, entry: TensorEntry) -> StoredTensor:
        return StoredTensor(entry, self._maps[entry.file], partial(self.checkpoint.check_unchanged, entry.file))


def default_kernel() -> str:
    """`quantized` on a GPU, `dequantize` on the CPU, where MLX's quantised product is 10 to 20 times slower."""
    return "quantized" if on_gpu() else "dequantize"


def _map(checkpoint: Checkpoint, file: Path) -> mmap.mmap:
    checkpoint.check_unchanged(file)
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error


def _describe(entry: LinearEntry) -> str:
    return f"{entry.name} {entry.in_features}→{entry.out_features}, {entry.bits} bits, group {entry.group_size}"
