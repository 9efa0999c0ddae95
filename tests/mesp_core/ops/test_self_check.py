"""Planted wrong kernels are caught, reported and avoided; right ones are used."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.data.batches import Batch
from mesp_core.engine import rowwise as chunks
from mesp_core.engine import token_loss
from mesp_core.engine.blockwise import Blockwise
from mesp_core.engine.shape import BlockShape
from mesp_core.engine.used_shapes import used_shapes
from mesp_core.lifetimes.keep import Keep
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import projection_path
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.ops import pieces
from mesp_core.ops.self_check import check_kernel
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.weights.weights import Weights

TOKENS = 17
RIGHT = mx.quantized_matmul


@pytest.fixture
def plant(monkeypatch):
    """plant(spoil, when) replaces mx.quantized_matmul by one that spoils its result where `when` says so."""

    def replace(spoil, when=lambda **facts: True):
        def wrong(x, weight, scales, biases, *, transpose, group_size, bits):
            y = RIGHT(x, weight, scales, biases, transpose=transpose, group_size=group_size, bits=bits)
            rows, dtype = math.prod(x.shape[:-1]), x.dtype
            bad = when(transpose=transpose, bits=bits, rows=rows, dtype=dtype, out_features=weight.shape[0])
            return spoil(y) if bad else y

        monkeypatch.setattr(mx, "quantized_matmul", wrong)

    return replace


def slightly(y):
    return (y * 1.001).astype(y.dtype)


def doubled(y):
    return 2 * y


def last_column_dropped(y):
    return mx.concatenate([y[..., :-1], mx.zeros_like(y[..., -1:])], axis=-1)


def one_nan(y):
    flat = mx.flatten(y)
    return mx.concatenate([mx.full((1,), mx.nan, y.dtype), flat[1:]]).reshape(y.shape)


def one_infinity(y):
    flat = mx.flatten(y)
    return mx.concatenate([flat[:-1], mx.full((1,), mx.inf, y.dtype)]).reshape(y.shape)


SPOILS = [slightly, doubled, last_column_dropped, one_nan, one_infinity, mx.zeros_like]


@pytest.mark.parametrize("bits, group_size", [(2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 32)])
@pytest.mark.parametrize("scales", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_right_kernel_is_used_in_float32(bits, group_size, scales, make_linear):
    linear, _, _ = make_linear(96, 64, bits=bits, group_size=group_size, dtype=scales, bias=True)
    verdict = check_kernel([linear], TOKENS, mx.float32)
    assert verdict.kernel == "quantized" and verdict.ok
    assert 0 <= verdict.forward_error <= 1e-5 and 0 <= verdict.backward_error <= 1e-5


@pytest.mark.parametrize("dtype, bound", [(mx.bfloat16, 2e-2), (mx.float16, 1e-2)], ids=str)
def test_a_right_kernel_is_used_in_half_precision(dtype, bound, make_linear):
    linear, _, _ = make_linear(64, 64, bits=4, dtype=dtype)
    verdict = check_kernel([linear], TOKENS, dtype)
    assert verdict.ok
    # not by accident: half precision does differ from float32
    assert 1e-5 < verdict.forward_error <= bound and 1e-5 < verdict.backward_error <= bound


@pytest.mark.parametrize("transpose", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: getattr(spoil, "__name__", "zeros"))
def test_a_wrong_kernel_is_caught_and_said_which(spoil, transpose, plant, make_linear):
    linear, _, _ = make_linear(96, 64, bits=4)
    plant(spoil, lambda transpose, **facts: transpose is wanted)
    wanted = transpose
    verdict = check_kernel([linear], TOKENS, mx.float32)
    assert verdict.kernel == "dequantize" and not verdict.ok
    wrong, right = (verdict.forward_error, verdict.backward_error)[:: 1 if transpose else -1]
    assert not wrong <= 1e-5
    assert right <= 1e-5


@pytest.mark.parametrize("spoil", [doubled, one_nan, last_column_dropped])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
def test_a_wrong_kernel_is_caught_in_half_precision(dtype, spoil, plant, make_linear):
    linear, _, _ = make_linear(64, 64, bits=4, dtype=dtype)
    plant(spoil, lambda transpose, **facts: not transpose)
    assert not check_kernel([linear], TOKENS, dtype).ok


@pytest.mark.parametrize("wrong", [True, False], ids=["forward", "backward"])
def test_the_check_multiplies_as_many_rows_as_the_run(wrong, plant, make_linear):
    """Kernels are chosen by the number of rows: one may be right for few and wrong for many."""
    linear, _, _ = make_linear(96, 64, bits=4)
    plant(doubled, lambda transpose, rows, **facts: transpose is wrong and rows >= 16)
    assert check_kernel([linear], 15, mx.float32).ok
    assert not check_kernel([linear], 16, mx.float32).ok


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    inputs, labels = (rng.integers(0, 300, (2, 8)).astype(np.int32) for _ in range(2))
    labels[1, 5:] = -1
    return Batch(inputs, labels, tokens=13)


@pytest.fixture
def adapters_for():
    def make(checkpoint):
        from mesp_core.adapters.adapter import initial_adapters

        return initial_adapters(checkpoint.architecture, RunConfig(rank=4), b_scale=0.05)

    return make


def run(weights, adapters, batch, method="mesp"):
    shape = BlockShape.of(weights.checkpoint.architecture)
    blockwise = Blockwise(weights, 2.0, METHODS[method].kind.passes(shape, Keep(2)))
    return blockwise.loss_and_gradients(adapters, batch, 1 / batch.tokens)


@pytest.mark.parametrize("method", ["mesp", "mebp", "lean"])
@pytest.mark.parametrize("mode", ["streamed", "resident"])
def test_the_wrong_kind_alone_is_avoided_and_gradients_are_right_again(
    mode, method, qwen2_folder, plant, batch, adapters_for, relative_error
):
    checkpoint = open_checkpoint(qwen2_folder)
    adapters = adapters_for(checkpoint)
    loss, expected = run(Weights(checkpoint, mx.float32, "dequantize"), adapters, batch)

    # 96 rows: gate_proj and up_proj
    plant(doubled, lambda transpose, out_features, **facts: not transpose and out_features == 96)
    unchecked = Weights(checkpoint, mx.float32, "quantized", mode)
    _, wrong = run(unchecked, adapters, batch, method)
    first = projection_path(0, "q_proj")
    assert relative_error(wrong[first]["lora_b"], expected[first]["lora_b"]) > 1e-2  # the plant does harm

    checked = Weights(checkpoint, mx.float32, "quantized", mode)
    checked.check_kernels(16)
    kernels = {name: linear.kernel for name, linear in checked.block(1).linears.items()}
    assert {name for name, kernel in kernels.items() if kernel == "dequantize"} == {"gate_proj", "up_proj"}
    assert set(kernels.values()) == {"quantized", "dequantize"}
    assert checked.head().kernel == "quantized"
    bad = [name for name, verdict in checked.verdicts.items() if not verdict.ok]
    assert bad == [f"{name} 64→96, 4 bits, group 32" for name in ("gate_proj", "up_proj")]
    found_loss, found = run(checked, adapters, batch, method)
    assert found_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    for path, pair in expected.items():
        for part, gradient in pair.items():
            assert relative_error(found[path][part], gradient) <= 1e-5, f"{path}.{part}"


@pytest.mark.parametrize("method", ["mesp", "lean"])
@pytest.mark.parametrize("features, names", [(64, {"gate_proj", "up_proj"}), (32, {"gate_proj", "up_proj"})])
def test_a_kernel_wrong_only_for_the_parts_of_an_mlp_is_found(
    features, names, method, qwen2_folder, plant, batch, adapters_for, relative_error, monkeypatch
):
    """The MLP takes 96 features as 64 and 32: shapes that no whole layer has."""
    monkeypatch.setattr(pieces, "MLP_FEATURES", 64)
    checkpoint = open_checkpoint(qwen2_folder)
    adapters = adapters_for(checkpoint)
    _, expected = run(Weights(checkpoint, mx.float32, "dequantize"), adapters, batch)
    plant(doubled, lambda transpose, out_features, **facts: transpose and out_features == features)
    weights = Weights(checkpoint, mx.float32, "quantized")
    weights.check_kernels(16, used_shapes)
    wrong = {name for name, linear in weights.block(0).linears.items() if linear.kernel == "dequantize"}
    assert wrong >= names
    _, found = run(weights, adapters, batch, method)
    assert max(relative_error(found[p][k], expected[p][k]) for p in expected for k in expected[p]) <= 1e-5


def test_a_kernel_that_is_wrong_everywhere_is_used_nowhere(llama_folder, plant, batch, adapters_for, relative_error):
    checkpoint = open_checkpoint(llama_folder)
    adapters = adapters_for(checkpoint)
    _, expected = run(Weights(checkpoint, mx.float32, "dequantize"), adapters, batch)
    plant(one_nan)
    weights = Weights(checkpoint, mx.float32, "quantized")
    weights.check_kernels(16)
    assert weights.verdicts and not any(verdict.ok for verdict in weights.verdicts.values())
    _, found = run(weights, adapters, batch)
    assert max(relative_error(found[p][k], expected[p][k]) for p in expected for k in expected[p]) <= 1e-5


def test_kinds_differ_by_bits_and_group_size(llama_folder, plant):
    """v_proj of layer 1 has 8 bits; in layer 0 the same shape has 4. up_proj of layer 0 is plain and needs no check."""
    plant(doubled, lambda bits, **facts: bits == 8)
    weights = Weights(open_checkpoint(llama_folder), mx.float32, "quantized")
    weights.check_kernels(16)
    assert weights.block(1).linears["v_proj"].kernel == "dequantize"
    assert weights.block(0).linears["v_proj"].kernel == "quantized"
    assert weights.block(1).linears["k_proj"].kernel == "quantized"
    assert [name for name, verdict in weights.verdicts.items() if not verdict.ok] == ["v_proj 64→48, 8 bits, group 64"]


def test_nothing_is_checked_where_nothing_is_used(qwen2_folder, plant):
    plant(one_nan)
    weights = Weights(open_checkpoint(qwen2_folder), mx.float32, "dequantize")
    weights.check_kernels(16)
    assert weights.verdicts == {}
    assert weights.block(0).linears["q_proj"].kernel == "dequantize"


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_the_head_is_checked_in_float32_whatever_the_activations_are(name, request, plant):
    """ops/cross_entropy.py always multiplies the head in float32. A kernel that is wrong in float32 alone must not

    pass because the check tried float16: neither on a tied head nor on one of its own, which has the embedding's shape.
    """
    checkpoint = open_checkpoint(request.getfixturevalue(f"{name}_folder"))
    plant(doubled, lambda dtype, transpose, **facts: dtype == mx.float32 and not transpose)
    weights = Weights(checkpoint, mx.float16, "quantized")
    weights.check_kernels(16)
    assert weights.block(0).linears["q_proj"].kernel == "quantized"  # float16 is right
    assert weights.head().kernel == "dequantize"


def test_as_many_rows_are_tried_as_lean_takes_at_once(qwen2_folder, plant, batch, adapters_for, relative_error, monkeypatch):
    """Of a batch of 2 × 8 tokens lean multiplies 10 rows and then 6, and of its labelled ones 10 and then 3."""
    checkpoint = open_checkpoint(qwen2_folder)
    adapters = adapters_for(checkpoint)
    _, expected = run(Weights(checkpoint, mx.float32, "dequantize"), adapters, batch)
    monkeypatch.setattr(chunks, "TOKENS", 10)
    monkeypatch.setattr(token_loss, "TOKENS", 10)
    plant(doubled, lambda transpose, rows, **facts: not transpose and rows == 10)
    config = RunConfig(method="lean", rank=4, alpha=8.0, seq_len=8, batch_size=2, dtype="float32", kernel="quantized")
    method, _ = build_method(config, checkpoint, adapters)
    _, found = method.loss_and_gradients(adapters, batch, 1 / batch.tokens)
    assert max(relative_error(found[p][k], expected[p][k]) for p in expected for k in expected[p]) <= 1e-5
