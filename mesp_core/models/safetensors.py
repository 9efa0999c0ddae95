"""Reading the header of a safetensors file: which tensors it holds, where, and whether all their bytes are there.

Loads no MLX, so that a checkpoint can be judged, and a run planned, without touching the weights.
Format: 8 bytes little-endian header length n, n bytes of JSON, then the data that the header's offsets count from.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from mesp_core.errors import CheckpointError
from mesp_core.files.json_file import LARGEST, parse_object

# Bytes an element takes, for every type a checkpoint of ours may hold.
ITEM_SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "I64": 8,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
    "F64": 8,
    "U16": 2,
}
GIT_LFS = b"version "  # how the text begins that stands for a file left in Git LFS


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: absolute byte offset in its file, type and shape."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors of one file.

    Raises:
        CheckpointError: if the file cannot be opened, is not safetensors, or is shorter than its header says.
    """
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            first = stream.read(8)
            if first == GIT_LFS:
                raise CheckpointError(f"{file}: a Git LFS pointer, not the weights. Run `git lfs pull` in its folder.")
            length = int.from_bytes(first, "little")
            if LARGEST < length <= size - 8:
                raise CheckpointError(
                    f"{file}: its header is {length:,} bytes long, more than the {LARGEST:,} that any model's may be. "
                    "Download or copy it again."
                )
            if size < 8 or not 2 <= length <= size - 8:
                raise CheckpointError(
                    f"{file}: not a whole safetensors file: it has {size:,} bytes, too few for its header. "
                    "Download or copy it again."
                )
            header = parse_object(stream.read(length), f"{file}: the header")
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error

    entries = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        entry = _entry(file, name, info, data_start=8 + length)
        if entry.offset + entry.nbytes > size:
            raise CheckpointError(
                f"{file}: truncated: tensor {name} should end at byte {entry.offset + entry.nbytes:,}, "
                f"the file has {size:,}. Download or copy it again."
            )
        entries[name] = entry
    return entries


def _entry(file: Path, name: str, info: object, data_start: int) -> TensorEntry:
    try:
        dtype, shape, (start, end) = info["dtype"], tuple(info["shape"]), info["data_offsets"]
        whole = type(dtype) is str and all(type(n) is int and n >= 0 for n in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"{file}: the header entry of tensor {name} is damaged. Download or copy the file again.")
    if dtype not in ITEM_SIZES:
        raise CheckpointError(f"{file}: tensor {name} has the type {dtype}; supported are {', '.join(ITEM_SIZES)}.")
    nbytes = math.prod(shape) * ITEM_SIZES[dtype]
    if end - start != nbytes:
        raise CheckpointError(
            f"{file}: tensor {name} of shape {list(shape)} and type {dtype} should take {nbytes:,} bytes, "
            f"its header gives it {end - start:,}."
        )
    return TensorEntry(name, file, dtype, shape, data_start + start, nbytes)
