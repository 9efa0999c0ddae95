"""Checkpoints of several files: the index is honoured, and never followed out of the folder."""

import json
import os

import pytest

from mesp_core.errors import CheckpointError
from mesp_core.models.checkpoint import open_checkpoint

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path, llama_config, random_tensors, write_folder):
    """A whole checkpoint in two files, to be broken."""
    config = llama_config()
    return write_folder(tmp_path / "model", config, random_tensors(config), shards=2)


def refused(folder, *said):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    for part in (str(folder), *said):
        assert part in str(caught.value)
    assert caught.value.exit_code == 1


def edit_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_a_missing_shard(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    refused(sharded, "model-00002-of-00002.safetensors", "No such file")


def test_a_truncated_shard(sharded):
    file = sharded / "model-00001-of-00002.safetensors"
    os.truncate(file, file.stat().st_size - 100)
    refused(sharded, file.name, "truncated")


@pytest.mark.parametrize("where", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""])
def test_an_index_that_points_out_of_the_folder(where, sharded):
    edit_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": where}))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(sharded)
    assert "/etc/passwd: not" not in str(caught.value)  # it was not even opened


def test_an_index_that_points_to_a_real_file_outside(sharded):
    """Even if a whole checkpoint is there."""
    outside = sharded.parent / "outside.safetensors"
    outside.write_bytes((sharded / "model-00001-of-00002.safetensors").read_bytes())
    edit_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": "../outside.safetensors"}))
    refused(sharded, INDEX, "'../outside.safetensors'")


def test_an_index_that_names_the_wrong_shard(sharded):
    other = {"model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors"}
    names = {}

    def swap(weight_map):
        was = weight_map["model.norm.weight"]
        weight_map["model.norm.weight"] = names["new"] = other.get(was, "model-00001-of-00002.safetensors")

    edit_index(sharded, swap)
    refused(sharded, names["new"], "tensor model.norm.weight is missing", INDEX)


def test_an_index_that_leaves_a_tensor_out(sharded):
    """It is taken from a file that is read anyway, as mlx-lm takes it."""
    edit_index(sharded, lambda weight_map: weight_map.pop("model.norm.weight"))
    assert open_checkpoint(sharded).norms["model.norm"].shape == (64,)


@pytest.mark.parametrize("content", [{}, {"weight_map": None}, {"weight_map": []}, {"weight_map": {"a": 3}}], ids=str)
def test_an_index_without_a_map(content, sharded):
    (sharded / INDEX).write_text(json.dumps(content))
    refused(sharded, INDEX, "weight_map")


def test_links_as_the_hubs_cache_has_them(qwen2_folder, tmp_path):
    (tmp_path / "snapshot").mkdir()
    for file in qwen2_folder.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    assert open_checkpoint(tmp_path / "snapshot").bits == 4
