"""Matrices as MLX arrays that are pages of a file: a copy of the checkpoint's, aligned so that Metal can use it in place.

Metal takes memory of the host as it is if it begins and ends between pages; tensors in a safetensors file do not. So they
are copied once to the cache folder, each to a page of its own. `why_not` tries on this device, with a few pages, whether
that works at all; only then is anything large written.
"""

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
import numpy as np

from mesp_core.errors import MespError
from mesp_core.files.cache import cache_dir
from mesp_core.files.durable import to_disk
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.models.safetensors import TensorEntry
from mesp_core.weights.stored_tensor import DTYPES

PAGE = max(16384, mmap.PAGESIZE)  # macOS on Apple Silicon: 16 KiB
FORMAT_VERSION = 1
COPIED_AT_ONCE = 8 * 1024 * 1024
ABANDONED_S = 3600  # a temporary file that nobody has written to for so long is left from a process that was killed

Maps = Mapping[Path, mmap.mmap]


def adopt(host: np.ndarray) -> mx.array:
    """The host's memory, from page to page, as an MLX array without a copy. Only Metal can.

    Raises:
        ValueError: if this device cannot.
        AttributeError: if this MLX is older than 0.32.
    """
    return mx.asarray(host, copy=False)


def why_not() -> str | None:
    """Why mapped weights cannot be used on this device; None if they can.

    Three things are tried: that an adopted array is the host's memory and no copy of it, that one over a read-only file
    has that file's values, and that MLX multiplies by such arrays as by others. Not asked is MLX's count of allocated
    bytes: it includes adopted memory.
    """
    try:
        return _why_memory_is_not_shared() or _why_a_file_is_not()
    except AttributeError:
        return f"MLX {mx.__version__} has no asarray(copy=False); 0.32 has."
    except ValueError as error:
        return f"MLX cannot use the host's memory on this device: {error}"
    except (RuntimeError, OSError) as error:
        return f"the trial failed: {error}"


def _why_memory_is_not_shared() -> str | None:
    memory = mmap.mmap(-1, PAGE)
    host = np.frombuffer(memory, np.uint16)
    array = _array(memory, TensorEntry("trial", Path(), "BF16", (3, 5), 0, 30), 0)
    values = []
    for one in (0x3F80, 0x4000):  # 1 and 2 in bfloat16
        host[:] = one
        values += array.astype(mx.float32).tolist()
    shared = values == 3 * [5 * [1.0]] + 3 * [5 * [2.0]]
    return None if shared else "MLX copies the host's memory on this device."


def _why_a_file_is_not() -> str | None:
    rng = np.random.default_rng(0)
    shapes = {"weight": (128, 64), "scales": (128, 8), "biases": (128, 8)}  # 4 bits, 512 inputs in groups of 64
    host = {
        "weight": rng.integers(0, 2**32, shapes["weight"], np.uint32),
        "scales": rng.integers(0x3F00, 0x3F80, shapes["scales"], np.uint16),  # 0.5…1 in bfloat16
        "biases": rng.integers(0xBF00, 0xBF80, shapes["biases"], np.uint16),
    }
    types = {"weight": "U32", "scales": "BF16", "biases": "BF16"}
    entries = [TensorEntry(name, Path(), types[name], array.shape, 0, array.nbytes) for name, array in host.items()]
    offsets, size = _layout(entries)
    with tempfile.TemporaryFile() as file:
        for array, offset in zip(host.values(), offsets, strict=True):
            file.seek(offset)
            file.write(array.tobytes())
        file.truncate(size)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    in_place = [_array(mapping, *each) for each in zip(entries, offsets, strict=True)]
    copies = [mx.array(array).view(DTYPES[types[name]][1]) for name, array in host.items()]
    if not all(mx.array_equal(a, b).item() for a, b in zip(in_place, copies, strict=True)):
        return "arrays over a mapped file have other values than the file."
    x = mx.random.normal((8, 512), key=mx.random.key(0))
    y, expected = (
        mx.quantized_matmul(x, weight, scales.astype(x.dtype), biases.astype(x.dtype), group_size=64, bits=4)
        for weight, scales, biases in (in_place, copies)
    )
    return None if mx.array_equal(y, expected).item() else "quantized_matmul is wrong on arrays over a mapped file."


def open_copy(checkpoint: Checkpoint, maps: Maps) -> dict[str, mx.array]:
    """The weights, scales and biases of every matrix by tensor name, as arrays over the aligned copy of the checkpoint.

    Who uses them must hold them: MLX writes results into arrays that nobody holds any more, and these cannot be written.
    The copy is written if there is none; older ones of the same model folder are removed then.

    Raises:
        MespError: if it cannot be written; nothing is left behind.
        CheckpointError: if the checkpoint changed while it was copied.
    """
    entries = _matrices(checkpoint)
    offsets, size = _layout(entries)
    file = _file(checkpoint)
    try:
        if not file.exists() or file.stat().st_size != size:
            _write(file, checkpoint, maps, entries, offsets, size)
        with file.open("rb") as stream:
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise MespError(
            f"{file}: the page-aligned copy of the model that weights=mapped needs ({size / 1024**2:.0f} MB) cannot be "
            f"written or read: {error.strerror or error}. Make room, or use weights=streamed."
        ) from error
    return {entry.name: _array(mapping, entry, offset) for entry, offset in zip(entries, offsets, strict=True)}


def _array(mapping: mmap.mmap, entry: TensorEntry, offset: int) -> mx.array:
    """Cutting off what fills the last page, naming the dtype and the shape are views: none of them copies."""
    numpy_dtype, dtype = DTYPES[entry.dtype]
    item = np.dtype(numpy_dtype).itemsize
    pages = np.frombuffer(mapping, numpy_dtype, in_pages(entry.nbytes) // item, offset)
    array = adopt(pages)[: entry.nbytes // item].view(dtype).reshape(entry.shape)
    mx.eval(array)
    return array


def _matrices(checkpoint: Checkpoint) -> list[TensorEntry]:
    """Every tensor of a matrix but its bias; small tensors are not worth a page."""
    linears = checkpoint.linears.values()
    found = [entry for linear in linears for name, entry in linear.tensors.items() if name != "bias"]
    return sorted(found, key=lambda entry: entry.name)


def _layout(entries: Sequence[TensorEntry]) -> tuple[list[int], int]:
    """Where each tensor begins in the copy, and the copy's size."""
    ends = list(accumulate(in_pages(entry.nbytes) for entry in entries))
    return [0, *ends[:-1]], ends[-1]


def in_pages(nbytes: int) -> int:
    """So many bytes rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def _file(checkpoint: Checkpoint) -> Path:
    """NAME-FINGERPRINT: the name is the model folder's, with a mark of where it lies; the fingerprint its files'."""
    folder = checkpoint.folder.resolve()
    files = sorted((file.name, *fingerprint) for file, fingerprint in checkpoint.fingerprints.items())
    return cache_dir() / "mapped" / f"{folder.name}-{_digest(str(folder), 8)}-{_digest([FORMAT_VERSION, PAGE, files], 16)}"


def _digest(value: object, length: int) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:length]


def _write(
    file: Path, checkpoint: Checkpoint, maps: Maps, entries: Sequence[TensorEntry], offsets: Sequence[int], size: int
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_older(file)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}-", delete=False) as out:
            temporary = Path(out.name)
            for entry, offset in zip(entries, offsets, strict=True):
                checkpoint.check_unchanged(entry.file)
                out.seek(offset)
                for start in range(entry.offset, entry.offset + entry.nbytes, COPIED_AT_ONCE):
                    out.write(maps[entry.file][start : min(start + COPIED_AT_ONCE, entry.offset + entry.nbytes)])
            out.truncate(size)
            out.flush()
            to_disk(out.fileno())  # after a power cut, a file of the right size must not be full of zeros
        for source in checkpoint.fingerprints:
            checkpoint.check_unchanged(source)
        os.replace(temporary, file)
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _remove_older(file: Path) -> None:
    """Copies of the same model folder as it was before, and what a killed process left. Who uses one keeps its pages."""
    name = file.name.rsplit("-", 1)[0]
    for other in file.parent.iterdir():
        with suppress(OSError):
            older = other.name.rsplit("-", 1)[0] == name
            abandoned = other.name.startswith(f".{name}-") and other.stat().st_mtime < time.time() - ABANDONED_S
            if other != file and (older or abandoned):
                other.unlink()
