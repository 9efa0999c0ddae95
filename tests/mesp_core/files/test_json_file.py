"""JSON files of a model folder that are not what they should be: a sentence each."""

import json

import pytest

from mesp_core.errors import CheckpointError
from mesp_core.files.json_file import LARGEST, read_object
from mesp_core.models.checkpoint import open_checkpoint


def refused(file, *said):
    with pytest.raises(CheckpointError) as caught:
        read_object(file)
    for part in (str(file), *said):
        assert part in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.fixture
def write(tmp_path):
    """write(bytes) -> the path of a config.json."""

    def make(content):
        file = tmp_path / "config.json"
        file.write_bytes(content)
        return file

    return make


def test_an_object(write):
    assert read_object(write('{"a": ["é", 1.5, null]}'.encode())) == {"a": ["é", 1.5, None]}


def test_the_largest_file_is_read_and_one_byte_more_is_not(write):
    text = json.dumps({"a": "x" * (LARGEST - 9)}).encode()
    assert len(text) == LARGEST
    assert read_object(write(text))
    refused(write(text + b"\n"), f"{LARGEST:,} bytes")


@pytest.mark.parametrize("text", [b"[" * 10**5, b'{"x":' * 10**5, b'{"x":' + b"[" * 10**5 + b"]" * 10**5 + b"}"], ids=len)
def test_nested_without_end(text, write):
    refused(write(text), "nested too deeply")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\x00", b"{'a': 1}", b'{"a": 1' + b"0" * 5000 + b"}"], ids=len)
def test_no_json(text, write):
    refused(write(text), "not valid JSON")


@pytest.mark.parametrize("text", [b"[]", b"3", b"null", b'"text"'])
def test_no_object(text, write):
    refused(write(text), "expected a JSON object")


def test_no_file(tmp_path):
    refused(tmp_path / "config.json", "missing")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_checkpoints_files_are_read_so(name, tiny_copy):
    (tiny_copy / name).write_bytes(b"[" * 10**5)
    with pytest.raises(CheckpointError, match=f"{name}: nested too deeply"):
        open_checkpoint(tiny_copy)
