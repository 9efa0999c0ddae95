"""Tokenised samples on disk: written once, row after row, and read memory-mapped.

A token set is a folder:

    ids.npy      int32 (total,)       the ids of all samples, one after the other
    mask.npy     uint8 (total,)       1 where that id is to be predicted
    offsets.npy  int64 (samples + 1,) sample i is ids[offsets[i]:offsets[i + 1]]
    lines.npy    int32 (samples,)     the line of the data file each sample is from
    meta.json    counts and checksums
"""

import json
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesp_core.errors import DataError

DTYPES = {"ids": np.int32, "mask": np.uint8, "offsets": np.int64, "lines": np.int32}


@dataclass(frozen=True, eq=False)
class TokenSet:
    """An opened token set. The arrays are read-only views of the files; build it with `open`.

    `kind` is that of the rows (see `rows.Row`), `rows` counts the rows read, `skipped` those with nothing to learn,
    `truncated` the samples cut at the sequence length, `max_id` is the largest id.
    """

    path: Path
    kind: str
    rows: int
    skipped: int
    truncated: int
    max_id: int
    ids: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray
    lines: np.ndarray
    meta: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "TokenSet":
        """Map the token set in `folder`, checking it as a whole against its checksums.

        Raises:
            DataError: the folder holds no token set, or a damaged one.
        """
        folder = Path(folder)
        try:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in DTYPES}
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            _check(arrays, meta)
            counts = {name: int(meta[name]) for name in ("rows", "skipped", "truncated", "max_id")}
            return cls(path=folder, kind=str(meta["kind"]), **counts, **arrays, meta=meta)
        except Exception as error:  # what NumPy and JSON make of foreign bytes is any error at all
            raise DataError(f"The tokenised data in {folder} is damaged or missing ({error}).") from None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def warnings(self) -> list[str]:
        """Sentences for a person, from when the samples were made."""
        return [str(warning) for warning in self.meta.get("warnings", ())]

    @property
    def total_tokens(self) -> int:
        """How many ids all samples have together."""
        return len(self.ids)

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """ids, int32 (n,), and mask, uint8 (n,), of sample `index` (0 to len - 1), n ≥ 2."""
        span = self._span(index)
        return np.asarray(self.ids[span]), np.asarray(self.mask[span])

    def length(self, index: int) -> int:
        """How many ids sample `index` has."""
        span = self._span(index)
        return span.stop - span.start

    def line(self, index: int) -> int:
        """The line of the data file, from 1, that sample `index` is from."""
        return int(self.lines[index])

    def sample_at(self, position: int) -> int:
        """The index of the sample that holds `ids[position]`."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1

    def put_back(self) -> None:
        """Write the folder again if it or its files are gone: the cache may be emptied while a run uses it.

        Raises:
            OSError: it cannot be written.
        """
        if all((self.path / name).exists() for name in ("meta.json", *(f"{name}.npy" for name in DTYPES))):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self.path.parent, ignore_cleanup_errors=True) as temporary:
            whole = Path(temporary, "whole")
            whole.mkdir()
            for name in DTYPES:  # these arrays are of files that live as long as they are mapped
                np.save(whole / f"{name}.npy", getattr(self, name))
            _write_meta(whole, self.meta)
            whole.rename(self.path)

    def _span(self, index: int) -> slice:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


class TokenSetWriter:
    """Writes a token set into an existing folder, sample by sample; complete only once `close` returned.

    Ids go to disk as they come, so that a data file of gigabytes needs no gigabytes of memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets = [0]
        self._lines: list[int] = []
        self._max_id = 0
        self._ids = _ArrayFile(folder / "ids.npy", np.int32)
        self._mask = _ArrayFile(folder / "mask.npy", np.uint8)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, ids: Sequence[int] | np.ndarray, mask: np.ndarray, line: int) -> None:
        """Append a sample: ids (n,) in 0 … 2³¹ - 1, mask (n,) of 0 and 1, and its line in the data file."""
        ids = np.asarray(ids, np.int32)
        self._ids.append(ids)
        self._mask.append(np.asarray(mask, np.uint8))
        self._offsets.append(self._offsets[-1] + len(ids))
        self._lines.append(line)
        self._max_id = max(self._max_id, int(ids.max()))

    def close(self, *, kind: str, rows: int, skipped: int, truncated: int, warnings: Sequence[str] = ()) -> None:
        """Finish the files and write the counts, and the warnings for whoever uses the set."""
        checksums = {"ids": self._ids.close(), "mask": self._mask.close()}
        for name, values in (("offsets", self._offsets), ("lines", self._lines)):
            array = np.asarray(values, DTYPES[name])
            np.save(self._folder / f"{name}.npy", array)
            checksums[name] = zlib.crc32(array)
        meta = {
            "kind": kind,
            "samples": len(self),
            "rows": rows,
            "skipped": skipped,
            "truncated": truncated,
            "total_tokens": self._offsets[-1],
            "max_id": self._max_id,
            "warnings": list(warnings),
            "crc32": checksums,
        }
        _write_meta(self._folder, meta)


class _ArrayFile:
    """A one-dimensional .npy file that grows: the header, whose size does not depend on the length, is written last."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._crc = 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, self._dtype)
        self._file.write(values)
        self._crc = zlib.crc32(values, self._crc)
        self._length += len(values)

    def close(self) -> int:
        """Finish the file; returns the CRC-32 of its values."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        return self._crc

    def _write_header(self) -> None:
        # NumPy pads the header for the shape to grow in place, to 128 bytes here.
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _check(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    for name, dtype in DTYPES.items():
        array = arrays[name]
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"{name}.npy is {array.dtype} {array.shape}")
        if zlib.crc32(np.ascontiguousarray(array)) != meta["crc32"][name]:
            raise ValueError(f"{name}.npy does not match its checksum")
    offsets, total, samples = arrays["offsets"], len(arrays["ids"]), len(arrays["lines"])
    if len(arrays["mask"]) != total or len(offsets) != samples + 1 or offsets[0] != 0 or offsets[-1] != total:
        raise ValueError("the lengths of its arrays do not fit together")
    if samples < 1 or np.diff(offsets).min() < 2:
        raise ValueError("a sample has no token to predict")
