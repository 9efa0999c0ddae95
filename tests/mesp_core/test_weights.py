"""Serving tensors: the right values, streamed or held, and never from a file that changed."""

import os

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.checkpoint import open_checkpoint
from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import projection_path
from mesp_core.ops import frozen_matmul
from mesp_core.weights import Weights, default_kernel


def loaded(folder):
    """Every tensor, as MLX reads it."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= mx.load(str(file))
    return tensors


@pytest.fixture
def copy(qwen2_folder, tmp_path):
    """A checkpoint of the test's own."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in qwen2_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_block_is_what_the_file_holds(folder, dtype, unpack):
    weights, tensors = Weights(open_checkpoint(folder), dtype), loaded(folder)
    for layer in range(2):
        block = weights.block(layer)
        assert len(block.linears) == 7 and len(block.norms) == 2
        for name, linear in block.linears.items():
            path = projection_path(layer, name)
            weight = tensors[f"{path}.weight"]
            assert linear.weight.dtype == weight.dtype
            if linear.bits is None:
                assert mx.array_equal(linear.weight, weight) and f"{path}.scales" not in tensors
            else:
                dense = unpack(weight, tensors[f"{path}.scales"], tensors[f"{path}.biases"], linear.bits)
                mine = frozen_matmul.dequantized_rows(linear, slice(None))
                assert mx.allclose(mine, dense, rtol=1e-5, atol=1e-6).item(), path
            if linear.bias is None:
                assert f"{path}.bias" not in tensors
            else:
                assert linear.bias.dtype == dtype
                assert mx.array_equal(linear.bias, tensors[f"{path}.bias"].astype(dtype))
        for name, norm in block.norms.items():
            assert norm.dtype == dtype
            assert mx.array_equal(norm, tensors[f"model.layers.{layer}.{name}.weight"].astype(dtype))
    assert mx.array_equal(weights.final_norm(), tensors["model.norm.weight"].astype(dtype))


def test_the_head_is_the_embedding_where_they_are_tied(qwen2_folder, llama_folder):
    for folder, name in ((qwen2_folder, "model.embed_tokens"), (llama_folder, "lm_head")):
        head = Weights(open_checkpoint(folder), mx.float32).head()
        linear = open_checkpoint(folder).linears[name]
        assert head.vocab_size == linear.out_features
        whole = Weights(open_checkpoint(folder), mx.float32, resident=True)._linear(linear)
        expected = frozen_matmul.dequantized_rows(whole, slice(None))
        assert mx.array_equal(whole.weight, loaded(folder)[f"{name}.weight"])
        assert mx.array_equal(head.part(3, 50).weight, expected[3:50])
        assert mx.array_equal(head.rows(np.array([7, 0, 7])), expected[mx.array([7, 0, 7])])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_embedding_rows_are_those_of_the_whole_table(folder, dtype, unpack):
    tensors, path = loaded(folder), "model.embed_tokens"
    table = unpack(*(tensors[f"{path}.{part}"] for part in ("weight", "scales", "biases")), 4)
    vocab = table.shape[0]
    ids = np.array([[0, vocab - 1, 7, 7, 3], [vocab - 1, 0, 1, 2, 7]], np.int32)
    rows = Weights(open_checkpoint(folder), dtype).embed(ids)
    assert rows.shape == (2, 5, 64) and rows.dtype == dtype
    tolerance = {mx.float32: 1e-6, mx.float16: 5e-4, mx.bfloat16: 4e-3}[dtype]
    expected = table[mx.array(ids)]
    assert mx.allclose(rows.astype(mx.float32), expected, rtol=tolerance, atol=1e-6).item()


def test_embedding_rows_of_a_plain_table(tmp_path, qwen2_config, random_tensors, write_folder):
    config = qwen2_config()
    del config["quantization"]
    tensors = random_tensors(config)
    weights = Weights(open_checkpoint(write_folder(tmp_path / "plain", config, tensors)), mx.float32)
    ids = np.array([[5, 299, 5]])
    expected = tensors["model.embed_tokens.weight"].astype(mx.float32)[mx.array(ids)]
    assert mx.array_equal(weights.embed(ids), expected)


@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
def test_resident_and_streamed_are_equal(folder, kernel):
    checkpoint = open_checkpoint(folder)
    streamed = Weights(checkpoint, mx.float32, kernel)
    resident = Weights(checkpoint, mx.float32, kernel, resident=True)
    for layer in (0, 1, 0):
        one, other = streamed.block(layer), resident.block(layer)
        for name in one.linears:
            mine, theirs = one.linears[name], other.linears[name]
            assert (mine.bits, mine.group_size, mine.kernel) == (theirs.bits, theirs.group_size, theirs.kernel)
            assert mine.kernel == kernel
            for part in ("weight", "scales", "biases", "bias"):
                a, b = getattr(mine, part), getattr(theirs, part)
                assert (a is None) == (b is None) and (a is None or mx.array_equal(a, b))
        for name in one.norms:
            assert mx.array_equal(one.norms[name], other.norms[name])
    assert mx.array_equal(streamed.head().part(5, 90).weight, resident.head().part(5, 90).weight)


def test_resident_holds_and_streamed_does_not(qwen2_folder):
    checkpoint = open_checkpoint(qwen2_folder)
    resident, streamed = Weights(checkpoint, mx.float32, resident=True), Weights(checkpoint, mx.float32)
    assert resident.block(0) is resident.block(0)
    assert streamed.block(0) is not streamed.block(0)

    def held(weights):
        mx.synchronize()
        before = mx.get_active_memory()
        for layer in (0, 1):
            mx.eval([linear.weight for linear in weights.block(layer).linears.values()])
        mx.eval(weights.head().part(0, 64).weight)
        return mx.get_active_memory() - before

    assert held(streamed) == 0
    assert held(Weights(checkpoint, mx.float32, resident=True)) > 20_000


def test_the_kernel_is_the_devices(qwen2_folder, monkeypatch):
    assert default_kernel() == ("dequantize" if mx.default_device().type == mx.DeviceType.cpu else "quantized")
    assert Weights(open_checkpoint(qwen2_folder), mx.float32).kernel == default_kernel()
    assert Weights(open_checkpoint(qwen2_folder), mx.float32, "quantized").block(0).linears["q_proj"].kernel == "quantized"


def test_what_was_served_outlives_the_file(copy):
    """A block is a copy: neither changing the file nor closing the map may reach it."""
    weights = Weights(open_checkpoint(copy), mx.float32)
    block = weights.block(0)
    before = np.array(block.linears["q_proj"].weight)
    with (copy / "model.safetensors").open("r+b") as stream:
        stream.seek(2000)
        stream.write(b"\xff" * (copy / "model.safetensors").stat().st_size)
    del weights
    assert np.array_equal(np.array(block.linears["q_proj"].weight), before)


@pytest.mark.parametrize("change", ["cut", "touched", "removed", "replaced"])
@pytest.mark.parametrize("what", ["block", "head", "final_norm", "embed"])
def test_a_file_that_changed_is_refused(what, change, copy):
    weights = Weights(open_checkpoint(copy), mx.float32)
    serve = {
        "block": lambda: weights.block(1),
        "head": lambda: weights.head().part(0, 5),
        "final_norm": weights.final_norm,
        "embed": lambda: weights.embed(np.array([[1, 2]])),
    }[what]
    serve()
    file = copy / "model.safetensors"
    if change == "cut":
        os.truncate(file, file.stat().st_size // 2)
    elif change == "touched":
        os.utime(file, ns=(1, 1))
    elif change == "removed":
        file.unlink()
    else:
        (copy / "new").write_bytes(b"\0" * 100)
        (copy / "new").replace(file)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: changed or removed"):
        serve()


@pytest.mark.parametrize("change", ["removed", "emptied"])
def test_a_file_that_goes_between_opening_and_mapping(change, copy):
    """The user's message, not FileNotFoundError or mmap's ValueError."""
    checkpoint = open_checkpoint(copy)
    file = copy / "model.safetensors"
    if change == "removed":
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Weights(checkpoint, mx.float32).block(0)


def test_verdicts_reach_what_is_already_held(qwen2_folder, monkeypatch):
    """If a block was asked for before the check, a held one must not keep the kernel that the check found wrong."""
    right = mx.quantized_matmul
    monkeypatch.setattr(mx, "quantized_matmul", lambda *arrays, **options: 2 * right(*arrays, **options))
    weights = Weights(open_checkpoint(qwen2_folder), mx.float32, "quantized", resident=True)
    weights.block(0)
    weights.check_kernels(8)
    assert weights.block(0).linears["q_proj"].kernel == "dequantize"
