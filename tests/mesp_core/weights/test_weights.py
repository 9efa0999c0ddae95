"""Serving tensors: the right values, streamed or held, and never from a file that changed."""

import os

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import projection_path
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.ops import frozen_matmul, pieces
from mesp_core.weights.stored_tensor import StoredTensor
from mesp_core.weights.weights import Weights, default_kernel


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
        whole = Weights(open_checkpoint(folder), mx.float32, mode="resident")._whole_linear(linear)
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
    resident = Weights(checkpoint, mx.float32, kernel, mode="resident")
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


def test_resident_holds_and_streamed_does_not(qwen2_folder, exact_memory):
    checkpoint = open_checkpoint(qwen2_folder)
    resident, streamed = Weights(checkpoint, mx.float32, mode="resident"), Weights(checkpoint, mx.float32)
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
    assert held(Weights(checkpoint, mx.float32, mode="resident")) > 20_000


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
@pytest.mark.parametrize("what", ["block", "lazy_block", "row block", "product", "head", "final_norm", "embed"])
def test_a_file_that_changed_is_refused(what, change, copy):
    weights = Weights(open_checkpoint(copy), mx.float32)
    lazy = weights.lazy_block(1).linears["down_proj"]
    serve = {
        "block": lambda: weights.block(1),
        "lazy_block": lambda: weights.lazy_block(1),
        "row block": lambda: lazy.weight[3:9],
        "product": lambda: frozen_matmul.forward(mx.zeros((2, 96)), lazy),
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
    weights = Weights(open_checkpoint(qwen2_folder), mx.float32, "quantized", mode="resident")
    weights.block(0)
    weights.check_kernels(8)
    assert weights.block(0).linears["q_proj"].kernel == "dequantize"


def test_a_lazy_block_is_the_block(folder):
    weights = Weights(open_checkpoint(folder), mx.float32)
    for layer in range(2):
        whole, lazy = weights.block(layer), weights.lazy_block(layer)
        assert whole.linears.keys() == lazy.linears.keys() and whole.norms.keys() == lazy.norms.keys()
        assert all(mx.array_equal(whole.norms[name], lazy.norms[name]) for name in whole.norms)
        for name, mine in lazy.linears.items():
            theirs = whole.linears[name]
            assert mine.stored and not theirs.stored
            assert (mine.out_features, mine.in_features) == (theirs.out_features, theirs.in_features)
            assert mine.nbytes == theirs.nbytes
            for part in ("weight", "scales", "biases"):
                a, b = getattr(mine, part), getattr(theirs, part)
                if b is None:
                    assert a is None
                    continue
                assert isinstance(a, StoredTensor) and a.shape == b.shape and a.ndim == b.ndim
                assert a.dtype == b.dtype and a.nbytes == b.nbytes
                for rows in (slice(None), slice(5, 11), (slice(3, 40), slice(0, 1)), (slice(None), slice(None))):
                    assert mx.array_equal(a[rows], b[rows]) and a[rows].dtype == b.dtype
                ids = np.array([9, 0, 9, 2])
                assert mx.array_equal(a[ids], b[mx.array(ids)]) and mx.array_equal(a[mx.array(ids)], b[mx.array(ids)])
            assert (mine.bias is None) == (theirs.bias is None)
            assert mine.bias is None or mx.array_equal(mine.bias, theirs.bias)


def test_lazy_is_only_what_is_streamed(qwen2_folder):
    weights = Weights(open_checkpoint(qwen2_folder), mx.float32, mode="resident")
    assert weights.lazy_block(1) is weights.block(1)
    assert weights.fallback is None and weights.mapped_bytes == 0


@pytest.fixture(scope="module")
def wide(tmp_path_factory, qwen2_config, random_tensors, write_folder):
    """One block whose MLP is 4 MB as it is stored, in two shards."""
    config = qwen2_config(hidden_size=512, intermediate_size=4096, num_hidden_layers=1)
    return write_folder(tmp_path_factory.mktemp("wide"), config, random_tensors(config), shards=2)


def test_reading_a_part_allocates_that_part(wide, exact_memory):
    """Of columns too, where a strided copy could take the rows they are cut from."""
    weight = Weights(open_checkpoint(wide), mx.float32).lazy_block(0).linears["down_proj"].weight

    def taken(part):
        before = mx.get_active_memory()
        array = weight[part]
        mx.eval(array)
        return mx.get_active_memory() - before - array.nbytes

    whole = weight.nbytes
    assert whole == 512 * 4096 // 2
    for part in (slice(8, 16), (slice(None), slice(32, 64)), np.arange(9)):
        assert 0 <= taken(part) < whole / 50


@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
@pytest.mark.parametrize("name", ["gate_proj", "down_proj"])
def test_a_streamed_product_holds_a_row_block_and_nothing_afterwards(name, kernel, wide, noise, monkeypatch, exact_memory):
    """Beyond its result, each product holds what it is given a block of: packed, and in float32 if that is made of it."""
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", 32_768)
    monkeypatch.setattr(pieces, "STORED_BYTES", 65_536)
    linear = Weights(open_checkpoint(wide), mx.float32, kernel).lazy_block(0).linears[name]
    x, g = noise(4, linear.in_features), noise(4, linear.out_features)
    mx.eval(x, g)
    packed = linear.weight.nbytes
    for product, operand in ((frozen_matmul.forward, x), (frozen_matmul.backward, g)):
        mx.synchronize()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        result = product(operand, linear)
        mx.eval(result)
        peak = mx.get_peak_memory() - held - 3 * result.nbytes
        assert peak < 5 * 4 * 32_768 < 0.65 * packed, (product, peak)
        result = None
        assert mx.get_active_memory() == held


def test_the_check_multiplies_what_lies_in_the_file_and_reads_no_more_than_it_is_given(wide):
    """`shapes` cuts the parts from a layer that is still in its file; without it, the whole is tried."""
    met = []

    def shapes(name, linear):
        assert linear.stored
        met.append(name)
        return [frozen_matmul.outputs(linear, 0, 64)]

    weights = Weights(open_checkpoint(wide), mx.float32, "quantized")
    weights.check_kernels(4, shapes)
    assert {"gate_proj", "down_proj", "embed_tokens"} <= set(met)
    assert all(verdict.ok for verdict in weights.verdicts.values())
