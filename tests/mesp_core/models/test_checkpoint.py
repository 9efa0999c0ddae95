"""Opening a checkpoint folder: what is found in a good one, and what is said of a bad one."""

import os
from pathlib import Path

import mlx.core as mx
import pytest

from mesp_core.errors import CheckpointError, UsageError
from mesp_core.models.checkpoint import open_checkpoint


@pytest.fixture
def make(tmp_path, qwen2_config, random_tensors, write_folder):
    """make(changes of config.json, change(tensors), shards) -> a folder that may be broken."""

    def build(config=None, change=lambda tensors: None, shards=1, **changes):
        config = config or qwen2_config()
        tensors = random_tensors(config)
        change(tensors)
        return write_folder(tmp_path / "model", config | changes, tensors, shards)

    return build


def refused(folder, *said):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    for part in (str(folder), *said):
        assert part in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_tied_qwen2(qwen2_folder):
    found = open_checkpoint(qwen2_folder)
    assert found.folder == qwen2_folder
    assert (found.bits, found.float_dtype) == (4, "BF16")
    assert found.head is found.linears["model.embed_tokens"]
    q = found.linears["model.layers.1.self_attn.q_proj"]
    assert (q.out_features, q.in_features, q.bits, q.group_size) == (64, 64, 4, 32)
    assert set(q.tensors) == {"weight", "scales", "biases", "bias"}
    assert set(found.linears["model.layers.1.self_attn.o_proj"].tensors) == {"weight", "scales", "biases"}
    assert set(found.norms) == {
        *(f"model.layers.{i}.{name}" for i in range(2) for name in ("input_layernorm", "post_attention_layernorm")),
        "model.norm",
    }
    matrices = 300 * 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96)
    assert found.parameters == matrices + 2 * (64 + 32 + 32) + 5 * 64


def test_a_sharded_mixed_llama(llama_folder):
    found = open_checkpoint(llama_folder)
    assert (found.bits, found.float_dtype) == (4, "F16")
    assert found.head is found.linears["lm_head"]
    up, v = found.linears["model.layers.0.mlp.up_proj"], found.linears["model.layers.1.self_attn.v_proj"]
    assert (up.bits, up.group_size, set(up.tensors)) == (None, None, {"weight"})
    assert (v.bits, v.group_size) == (8, 64)
    assert found.linears["model.layers.0.self_attn.v_proj"].bits == 4
    assert {file.name for file in found.fingerprints} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_every_tensor_entry_is_the_tensor(llama_folder):
    """Offsets across shards: the bytes found are those that MLX itself loads."""
    import numpy as np

    loaded = {}
    for file in llama_folder.glob("*.safetensors"):
        loaded |= mx.load(str(file))
    found = open_checkpoint(llama_folder)
    entries = [e for linear in found.linears.values() for e in linear.tensors.values()] + list(found.norms.values())
    assert {entry.name for entry in entries} == set(loaded)
    for entry in entries:
        with entry.file.open("rb") as stream:
            stream.seek(entry.offset)
            assert stream.read(entry.nbytes) == np.array(loaded[entry.name]).tobytes()


def test_nothing_quantised(make, qwen2_config):
    config = qwen2_config()
    del config["quantization"]
    found = open_checkpoint(make(config))
    assert found.bits is None
    assert all(linear.bits is None for linear in found.linears.values())


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_the_size_on_disk(name, request):
    folder = request.getfixturevalue(f"{name}_folder")
    files = list(folder.glob("*.safetensors"))
    assert len(files) == (1 if name == "qwen2" else 2)
    assert open_checkpoint(folder).size_bytes == sum(file.stat().st_size for file in files)


def test_no_folder(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match=f"model: {path} is not a folder") as caught:
            open_checkpoint(path)
        assert caught.value.exit_code == 2


def test_no_config(make):
    folder = make()
    (folder / "config.json").unlink()
    refused(folder, "config.json", "missing")


@pytest.mark.parametrize("text, said", [("{", "not valid JSON"), ("[]", "list"), ("3", "int"), ("", "not valid JSON")])
def test_a_config_that_is_no_object(text, said, make):
    folder = make()
    (folder / "config.json").write_text(text)
    refused(folder, "config.json", said)


def test_a_config_that_is_not_text(make):
    folder = make()
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "config.json", "not valid JSON")


def test_no_weights(make):
    folder = make()
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    refused(folder, "no model*.safetensors")


def test_a_truncated_file(make):
    folder = make()
    file = folder / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 1)
    refused(folder, "model.safetensors", "truncated", f"{size:,}", f"{size - 1:,}")


def test_an_empty_file(make):
    folder = make()
    (folder / "model.safetensors").write_bytes(b"")
    refused(folder, "model.safetensors", "0 bytes")


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.self_attn.k_proj.biases",
        "model.layers.0.self_attn.v_proj.bias",
        "model.layers.1.post_attention_layernorm.weight",
    ],
)
def test_a_missing_tensor(name, make):
    refused(make(change=lambda tensors: tensors.pop(name)), f"tensor {name} is missing")


def test_missing_scales(make):
    """Then the packed weight is taken for a plain one, and has neither its type nor its shape."""
    name = "model.layers.0.mlp.up_proj"
    refused(make(change=lambda tensors: tensors.pop(f"{name}.scales")), f"{name}.weight", "U32 [96, 8]", "[96, 64]")


def test_a_missing_head(make, llama_config):
    config = llama_config()
    for name in ("lm_head.weight", "lm_head.scales"):
        refused(make(config, change=lambda tensors, name=name: tensors.pop(name)), "lm_head.weight")


@pytest.mark.parametrize(
    "name, shape, wanted",
    [
        ("model.norm.weight", (63,), "[64]"),
        ("model.norm.weight", (1, 64), "[64]"),
        ("model.layers.0.self_attn.q_proj.bias", (32,), "[64]"),
        ("model.layers.0.self_attn.q_proj.scales", (32, 2), "[64, 2]"),
        ("model.layers.0.self_attn.q_proj.biases", (2, 64), "[64, 2]"),
    ],
)
def test_a_wrong_shape(name, shape, wanted, make):
    folder = make(change=lambda tensors: tensors.update({name: mx.zeros(shape, mx.bfloat16)}))
    refused(folder, "model.safetensors", f"tensor {name}", str(list(shape)), wanted)


def test_a_size_in_config_that_is_not_the_files(make):
    refused(make(vocab_size=301), "model.embed_tokens", "[300, 8]", "[301, 8]")


def test_fewer_layers_than_config_says(make):
    refused(make(num_hidden_layers=3), "model.layers.2.", "missing")


@pytest.mark.parametrize(
    "name, dtype, said",
    [
        ("model.norm.weight", mx.int32, ["I32", "F32/F16/BF16"]),
        ("model.layers.0.self_attn.q_proj.biases", mx.uint8, ["U8", "F32/F16/BF16"]),
        ("model.layers.0.self_attn.q_proj.weight", mx.int32, ["I32", "U32"]),
        ("model.layers.0.self_attn.q_proj.bias", mx.uint32, ["U32", "F32/F16/BF16"]),
    ],
)
def test_a_wrong_type(name, dtype, said, make):
    def change(tensors):
        tensors[name] = tensors[name].astype(mx.float32).astype(dtype)

    refused(make(change=change), f"tensor {name}", *said)


def test_an_unknown_model_type(make):
    refused(make(model_type="mamba"), "config.json", "'mamba'", "qwen2, llama")


def test_a_change_after_opening_is_seen(make):
    found = open_checkpoint(make())
    (file,) = found.fingerprints
    found.check_unchanged(file)
    content = file.read_bytes()
    changes = {
        "cut": lambda: os.truncate(file, len(content) - 4),
        "touched": lambda: (file.write_bytes(content), os.utime(file, ns=(1, 1))),
        "removed": file.unlink,
        "replaced by a folder": lambda: Path(file).mkdir(),
    }
    for change in changes.values():
        change()
        with pytest.raises(CheckpointError, match=f"{file}: changed or removed"):
            found.check_unchanged(file)
