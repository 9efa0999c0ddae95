import json
import zlib

import numpy as np
import pytest

from mesp_core.data.token_set import TokenSet, TokenSetWriter
from mesp_core.errors import DataError


@pytest.fixture
def folder(tmp_path):
    writer = TokenSetWriter(tmp_path)
    writer.add([1, 2, 3], np.array([0, 1, 1]), line=1)
    writer.add(np.array([2**31 - 1, 0]), np.array([0, 1]), line=7)
    writer.close(kind="tokens", rows=4, skipped=2, truncated=1)
    return tmp_path


def test_round_trip(folder):
    tokens = TokenSet.open(folder)
    assert len(tokens) == 2 and tokens.total_tokens == 5 and tokens.path == folder
    assert (tokens.kind, tokens.rows, tokens.skipped, tokens.truncated) == ("tokens", 4, 2, 1)
    assert tokens.max_id == 2**31 - 1
    ids, mask = tokens.sample(1)
    assert ids.tolist() == [2**31 - 1, 0] and mask.tolist() == [0, 1]
    assert [tokens.line(i) for i in range(2)] == [1, 7]
    assert [tokens.length(i) for i in range(2)] == [3, 2]
    assert [tokens.sample_at(position) for position in range(5)] == [0, 0, 0, 1, 1]
    for index in (2, -1):
        with pytest.raises(IndexError):
            tokens.sample(index)


def test_plain_numpy_reads_the_files(folder):
    """The header, written before the length is known and again after, is a regular one."""
    layout = {"ids": (np.int32, 5), "mask": (np.uint8, 5), "offsets": (np.int64, 3), "lines": (np.int32, 2)}
    for name, (dtype, length) in layout.items():
        array = np.load(folder / f"{name}.npy")
        assert array.dtype == dtype and array.shape == (length,)
    assert np.load(folder / "offsets.npy").tolist() == [0, 3, 5]


def test_arrays_are_mapped_and_read_only(folder):
    ids, _ = TokenSet.open(folder).sample(0)
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 9


def test_a_folder_that_was_not_finished_is_no_token_set(tmp_path):
    TokenSetWriter(tmp_path).add([1, 2], np.array([0, 1]), line=1)
    with pytest.raises(DataError, match="damaged or missing"):
        TokenSet.open(tmp_path)
    with pytest.raises(DataError, match="damaged or missing"):
        TokenSet.open(tmp_path / "nowhere")


def test_arrays_that_do_not_fit_together(folder):
    """Right checksums, wrong lengths."""
    offsets = np.array([0, 3, 4], np.int64)
    np.save(folder / "offsets.npy", offsets)
    meta = json.loads((folder / "meta.json").read_text())
    meta["crc32"]["offsets"] = zlib.crc32(offsets)
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="do not fit together"):
        TokenSet.open(folder)
