"""A checkpoint with NaN or infinity in it is called what it is; a run that diverged gets advice that helps."""

import math
import os

import mlx.core as mx
import pytest

from mesp_core.errors import CheckpointError, MespError, NotFiniteError
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.non_finite import explained, first_non_finite

SMALL = ["--seq-len", "32", "--rank", "4", "--steps", "2"]


def damage(folder, name, value, at=0):
    """Put `value` into one number of a tensor of a checkpoint in one file."""
    file = folder / "model.safetensors"
    tensors = mx.load(str(file))
    mx.eval(tensors)
    flat = tensors[name].reshape(-1)
    flat[at] = value
    tensors[name] = flat.reshape(tensors[name].shape)
    mx.save_safetensors(str(file), tensors, {"format": "mlx"})
    return folder


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name, at",
    [
        ("model.norm.weight", 63),
        ("model.embed_tokens.weight", 300 * 64 - 1),
        ("model.layers.1.self_attn.k_proj.bias", 5),
    ],
)
def test_a_number_is_found(name, at, value, dtype, tmp_path, qwen2_config, random_tensors, write_folder):
    config = qwen2_config()
    del config["quantization"]
    folder = write_folder(tmp_path / "model", config, random_tensors(config, dtype))
    assert first_non_finite(open_checkpoint(folder)) is None
    said = first_non_finite(open_checkpoint(damage(folder, name, value, at)))
    assert f"{folder / 'model.safetensors'}: tensor {name} holds NaN or infinity (1 of" in said


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_quantised_tensors_are_searched(part, tiny_copy):
    name = f"model.layers.2.mlp.up_proj.{part}"
    assert f"tensor {name}" in first_non_finite(open_checkpoint(damage(tiny_copy, name, math.inf)))


def test_a_large_tensor_is_searched_to_its_end(tiny_copy, monkeypatch):
    monkeypatch.setattr("mesp_core.models.non_finite.NUMBERS_AT_ONCE", 100)
    assert first_non_finite(open_checkpoint(tiny_copy)) is None
    name = "model.embed_tokens.scales"
    last = mx.load(str(tiny_copy / "model.safetensors"))[name].size - 1
    assert name in first_non_finite(open_checkpoint(damage(tiny_copy, name, math.nan, last)))


def test_the_largest_finite_numbers_are_finite(tiny_copy):
    damage(tiny_copy, "model.norm.weight", mx.finfo(mx.bfloat16).max)
    assert first_non_finite(open_checkpoint(tiny_copy)) is None


def test_a_file_that_changed_is_not_read(tiny_copy):
    checkpoint = open_checkpoint(tiny_copy)
    os.utime(tiny_copy / "model.safetensors", ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed or removed"):
        first_non_finite(checkpoint)


@pytest.mark.parametrize("method", ["mesp", "autodiff"])
def test_training_names_the_tensor(method, mesp, tiny_copy):
    damage(tiny_copy, "model.layers.1.input_layernorm.weight", math.nan)
    process = mesp("train", *SMALL, "--model", tiny_copy, "--method", method, "--out", "out")
    assert process.returncode == 1
    assert "model.safetensors: tensor model.layers.1.input_layernorm.weight holds NaN or infinity (1 of" in process.stderr
    assert "diverged" not in process.stderr and "learning_rate" not in process.stderr


def test_check_names_the_tensor(mesp, tiny_copy):
    damage(tiny_copy, "model.layers.1.mlp.up_proj.scales", math.inf)
    process = mesp("check", *SMALL[:4], "--model", tiny_copy, "--methods", "mesp")
    assert process.returncode == 1
    assert "model.safetensors: tensor model.layers.1.mlp.up_proj.scales holds NaN or infinity (1 of" in process.stderr


def test_numbers_that_overflow_before_anything_was_learnt(mesp, tiny_copy):
    """Finite ones: no learning rate would help."""
    damage(tiny_copy, "model.norm.weight", 1e30)
    process = mesp("train", *SMALL, "--model", tiny_copy, "--dtype", "float16", "--out", "out")
    assert process.returncode == 1
    assert "at step 1, before anything was learnt" in process.stderr and "Set dtype to float32." in process.stderr
    assert "learning_rate" not in process.stderr


def test_what_is_said_of_a_run_that_diverged(tiny_copy):
    checkpoint = open_checkpoint(tiny_copy)
    error = NotFiniteError("The loss became nan at step 3: the run diverged. Lower it.", "loss", math.nan, 3)
    assert explained(error, checkpoint, "float32") is error
    assert explained(error, checkpoint, "bfloat16") is error
    in_float16 = explained(error, checkpoint, "float16")
    assert isinstance(in_float16, MespError)
    assert str(in_float16).startswith(str(error)) and "float32" in str(in_float16)
    first = NotFiniteError("The loss became nan at step 1: the run diverged. Lower it.", "loss", math.nan, 1)
    assert "diverged" not in str(explained(first, checkpoint, "float32"))
