"""Reading a safetensors header: offsets that are right, and files that are not."""

import json

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.errors import CheckpointError
from mesp_core.models.safetensors import ITEM_SIZES, read_header


def raw(header, data=b"", length=None):
    """The bytes of a file with this header (a value, or bytes as they stand)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.fixture
def write(tmp_path):
    """write(bytes) -> the path of a file."""

    def make(content):
        file = tmp_path / "model.safetensors"
        file.write_bytes(content)
        return file

    return make


def refused(file, *said):
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    for part in (str(file), *said):
        assert part in str(caught.value)


def test_what_mlx_wrote_is_found_where_it_lies(tmp_path, noise):
    file = tmp_path / "model.safetensors"
    tensors = {
        "a.weight": noise(3, 5),
        "b": noise(7, dtype=mx.float16),
        "c": noise(2, 2, 2, seed=4).astype(mx.bfloat16),
        "packed": mx.arange(6, dtype=mx.uint32).reshape(2, 3),
        "empty": mx.zeros((0, 4)),
        "scalar": mx.array(2.5),
    }
    mx.save_safetensors(str(file), tensors, {"format": "mlx"})
    entries = read_header(file)
    assert set(entries) == set(tensors)
    content = file.read_bytes()
    for name, array in tensors.items():
        entry = entries[name]
        assert (entry.name, entry.file, entry.shape, entry.nbytes) == (name, file, tuple(array.shape), array.nbytes)
        view = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
        assert content[entry.offset : entry.offset + entry.nbytes] == np.array(view).tobytes()
    assert [entries[name].dtype for name in ("a.weight", "b", "c", "packed")] == ["F32", "F16", "BF16", "U32"]


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_item_sizes(dtype, write):
    size = 3 * ITEM_SIZES[dtype]
    entries = read_header(write(raw({"x": {"dtype": dtype, "shape": [3], "data_offsets": [0, size]}}, bytes(size))))
    assert entries["x"].nbytes == size


def test_metadata_and_bytes_at_the_end_are_no_tensors(write):
    header = {"__metadata__": {"format": "mlx"}, "x": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}
    file = write(raw(header, b"abcd"))
    entry = read_header(file)["x"]
    assert file.read_bytes()[entry.offset : entry.offset + 2] == b"bc"


def test_a_file_that_is_one_byte_short(write):
    header = {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    whole = raw(header, bytes(16))
    assert read_header(write(whole))
    refused(write(whole[:-1]), "truncated", "tensor x", f"{len(whole):,}", f"{len(whole) - 1:,}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02",
        bytes(8),
        raw({}, length=1),
        raw({"x": 1}, length=10**6),
        raw({}, length=2**64 - 1),
        raw({}, length=2**40),
    ],
    ids=["empty", "one byte", "zeros", "length 1", "length beyond the end", "length 2^64-1", "length 2^40"],
)
def test_no_room_for_a_header(content, write):
    refused(write(content), "not a whole safetensors file")


@pytest.mark.parametrize("text", [b"{'x': 1}", b'{"x": ', b"\xff\xfe\xfd\xfc", b"PK\x03\x04"], ids=str)
def test_a_header_that_is_not_json(text, write):
    refused(write(raw(text)), "the header: not valid JSON")


@pytest.mark.parametrize("header", [[], [1], "x", 7, None])
def test_a_header_that_is_no_object(header, write):
    refused(write(raw(header, bytes(16))))


@pytest.mark.parametrize("text", [b"[" * 10**6, b'{"x": ' * 10**6], ids=["lists", "objects"])
def test_a_header_that_is_nested_without_end(text, write):
    refused(write(raw(text)), "the header", "nested too deeply")


def test_a_header_that_would_fill_the_memory(write, tmp_path):
    file = write(raw(b"[", length=10**9))
    with file.open("r+b") as stream:
        stream.truncate(10**9 + 100)  # of which the disk holds nothing
    refused(file, "1,000,000,000 bytes", "16,777,216")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        "F32",
        [],
        {},
        {"dtype": "F32", "shape": [4]},
        {"shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 32]},
        {"dtype": "F32", "shape": [4], "data_offsets": None},
        {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]},
        {"dtype": None, "shape": [4], "data_offsets": [0, 16]},
    ],
    ids=str,
)
def test_a_damaged_entry(entry, write):
    refused(write(raw({"layer.weight": entry}, bytes(32))), "layer.weight")


@pytest.mark.parametrize("offsets", [[0, 15], [0, 17], [16, 0], [4, 16], [0, 32]], ids=str)
def test_offsets_that_do_not_fit_the_shape(offsets, write):
    refused(
        write(raw({"x": {"dtype": "F32", "shape": [4], "data_offsets": offsets}}, bytes(64))),
        "tensor x",
        "[4]",
        "F32",
        "16",
    )


def test_a_type_that_is_not_known(write):
    refused(
        write(raw({"x": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, bytes(4))),
        "F8_E4M3",
        "tensor x",
        "BF16",
    )


def test_a_file_that_is_not_there(tmp_path):
    refused(tmp_path / "no.safetensors", "No such file")
    refused(tmp_path, "cannot be read")
