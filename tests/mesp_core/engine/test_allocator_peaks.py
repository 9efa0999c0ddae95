"""How much the row-blocked frozen matmul holds at once, by MLX's own count. Depth-first evaluation, see conftest.py."""

import os
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.ops import cross_entropy, frozen_matmul, pieces
from mesp_core.ops.cross_entropy import Head
from mesp_core.ops.frozen_matmul import FrozenLinear

IN, OUT, TOKENS = 256, 6000, 32
BLOCK_ROWS = 100
BLOCK_BYTES = 4 * IN * BLOCK_ROWS  # one block of W₀ in float32
WHOLE_BYTES = 4 * IN * OUT  # 60 blocks
RESULT_BYTES = 4 * TOKENS * OUT  # of a float32 forward: 7.5 blocks, so that a second copy of it shows
# Blocks held at once. mx.dequantize takes codes of 6 bits apart through temporaries of several times their size.
FEW = {None: 4, 4: 4, 6: 9}
DTYPES = [(mx.bfloat16, mx.float32), (mx.float32, mx.bfloat16)]  # of the scales or plain weights, of the rows


@pytest.fixture(autouse=True)
def settings(monkeypatch, exact_memory):
    """Small blocks. Skipped where MLX was told to evaluate breadth first."""
    if os.environ["MLX_BFS_MAX_WIDTH"] != "1":
        pytest.skip("MLX_BFS_MAX_WIDTH is set to something else than 1")
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", IN * BLOCK_ROWS)


def extra_peak(function):
    """The most bytes held while `function`'s result is made, beyond those held before. The largest of three runs."""

    def once():
        mx.synchronize()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        result = function()
        mx.eval(result)
        return mx.get_peak_memory() - held

    return max(once() for _ in range(3))


@pytest.fixture
def layer(noise):
    """layer(bits, scales) -> a linear layer with every array evaluated."""

    def make(bits, scales=mx.float32, out_features=OUT):
        weight = noise(out_features, IN)
        if bits is None:
            linear = FrozenLinear(weight.astype(scales))
        else:
            weight, *pair = mx.quantize(weight, group_size=64, bits=bits)
            linear = FrozenLinear(weight, *(a.astype(scales) for a in pair), bits=bits, group_size=64)
        mx.eval([a for a in (linear.weight, linear.scales, linear.biases) if a is not None])
        return linear

    return make


@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("scales, dtype", DTYPES, ids=["float32 rows", "bfloat16 rows"])
def test_forward_holds_its_result_and_a_few_blocks(dtype, scales, bits, layer, noise):
    linear, x = layer(bits, scales), noise(1, TOKENS, IN, dtype=dtype)
    mx.eval(x)
    peak = extra_peak(lambda: frozen_matmul.forward(x, linear))
    result, operand = TOKENS * OUT * dtype.size, 4 * TOKENS * IN
    assert result <= peak <= result + operand + FEW[bits] * BLOCK_BYTES


@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("scales, dtype", DTYPES, ids=["float32 rows", "bfloat16 rows"])
def test_backward_holds_its_result_and_a_few_blocks(dtype, scales, bits, layer, noise):
    linear, g = layer(bits, scales), noise(1, TOKENS, OUT, dtype=dtype)
    mx.eval(g)
    peak = extra_peak(lambda: frozen_matmul.backward(g, linear))
    # the sum in float32 before and after a block, the result, and that block of g
    results = TOKENS * IN * (4 + 4 + dtype.size) + 4 * TOKENS * BLOCK_ROWS
    assert TOKENS * IN * dtype.size <= peak <= results + FEW[bits] * BLOCK_BYTES


@pytest.mark.parametrize("product", [frozen_matmul.forward, frozen_matmul.backward], ids=["forward", "backward"])
def test_the_peak_is_the_blocks_and_not_the_layers(product, layer, noise):
    """Four times the rows: the forward's result grows, what is held beside it does not."""
    beside = []
    for out_features in (1500, 6000):
        linear = layer(4, out_features=out_features)
        x = noise(1, TOKENS, IN if product is frozen_matmul.forward else out_features)
        mx.eval(x)
        result = product(x, linear).nbytes
        beside.append(extra_peak(lambda: product(x, linear)) - result)  # noqa: B023 (called at once)
    assert abs(beside[1] - beside[0]) <= BLOCK_BYTES


def test_the_blocks_are_what_keeps_it_low(layer, noise, monkeypatch):
    """In one block the whole float copy of W₀ is held: the measure sees it."""
    linear, g = layer(4), noise(1, TOKENS, OUT)
    mx.eval(g)
    by_blocks = extra_peak(lambda: frozen_matmul.backward(g, linear))
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", IN * OUT)
    whole = extra_peak(lambda: frozen_matmul.backward(g, linear))
    assert whole >= WHOLE_BYTES > 6 * by_blocks


def test_a_traced_forward_keeps_no_float_copy_for_its_backward(layer, noise):
    """mebp's case: MLX differentiates through the forward, and W₀ must not stay in float in between.

    Twice the result, because under a trace each block cannot be evaluated by itself: the trace would then keep it.
    """
    linear, x, g = replace(layer(4), traced=True), noise(1, TOKENS, IN), noise(1, TOKENS, OUT, seed=2)
    mx.eval(x, g)
    peak = extra_peak(lambda: mx.vjp(lambda x: frozen_matmul.forward(x, linear), [x], [g]))
    assert peak <= 2 * RESULT_BYTES + 4 * TOKENS * (3 * IN + BLOCK_ROWS) + FEW[4] * BLOCK_BYTES < WHOLE_BYTES / 2


def test_the_loss_never_holds_all_logits(layer, noise, monkeypatch):
    """Of the labelled rows only, here one in eight; four times the vocabulary takes no more."""
    monkeypatch.setattr(pieces, "HEAD_ELEMENTS", BLOCK_ROWS * IN)
    peaks = []
    for vocab in (5000, 20000):
        head, n = layer(4, out_features=vocab), noise(1, 8 * TOKENS, IN)
        labels = np.full((1, 8 * TOKENS), -1)
        labels[0, ::8] = 5
        mx.eval(n)
        peaks.append(extra_peak(lambda: cross_entropy.forward_backward(n, labels, Head.of(head))))  # noqa: B023
    assert abs(peaks[1] - peaks[0]) <= BLOCK_BYTES, peaks
    chunk = TOKENS * BLOCK_ROWS * 4
    assert peaks[1] <= 4 * n.nbytes + 3 * chunk + FEW[4] * BLOCK_BYTES < TOKENS * 20000 * 4
