"""The rotation against the textbook's, against mlx-lm's, and its inverse."""

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from mesp_core.ops import rope
from mesp_core.ops.rope import Rotation

LLAMA3 = (8.0, 1.0, 4.0, 128)
SHAPES = [(1, 1, 1, 8), (2, 4, 7, 16), (1, 2, 33, 24), (3, 1, 3, 64)]


def llama3_settings(llama3):
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {"rope_type": "llama3", **dict(zip(names, llama3, strict=True))}


def llama3_divisors(dims, theta, llama3):
    """By the words of the description, number by number in float64."""
    factor, low, high, context = llama3
    divisors = []
    for i in range(0, dims, 2):
        divisor = theta ** (i / dims)
        turns = context / (2 * math.pi * divisor)  # within the original context
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / (kept / divisor + (1 - kept) / (divisor * factor)))
    return np.array(divisors)


# name -> (Rotation of D dims, what a position is multiplied by, position scale, mlx-lm's scaling settings)
def kinds(dims):
    plain = mx.array((10000.0 ** (-np.arange(0, dims, 2) / dims)).astype(np.float32))
    slow = mx.array((1e6 ** (-np.arange(0, dims, 2) / dims)).astype(np.float32))
    stretched = mx.array((1 / llama3_divisors(dims, 5e5, LLAMA3)).astype(np.float32))
    return {
        "theta 1e4": (Rotation(dims, 10000.0), plain, 1.0, 10000.0, None),
        "theta 1e6": (Rotation(dims, 1e6), slow, 1.0, 1e6, None),
        "linear": (Rotation(dims, 10000.0, 0.25), plain, 0.25, 10000.0, {"type": "linear", "factor": 4.0}),
        "llama3": (
            Rotation(dims, 5e5, freqs=rope.llama3_frequencies(dims, 5e5, LLAMA3)),
            stretched,
            1.0,
            5e5,
            llama3_settings(LLAMA3),
        ),
        "traditional": (Rotation(dims, 10000.0, traditional=True), plain, 1.0, 10000.0, None),
    }


KINDS = list(kinds(8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward(shape, kind, noise, plain, assert_close):
    rotation, frequencies, position_scale, _, _ = kinds(shape[-1])[kind]
    x, g = noise(*shape), noise(*shape, seed=2)
    turn = lambda x: plain.rope(x, frequencies, position_scale, rotation.traditional)  # noqa: E731
    y, (dx,) = mx.vjp(turn, [x], [g])
    assert_close(rope.forward(x, rotation), y[0], name="y")
    assert_close(rope.backward(g, rotation), dx, name="dx")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 33, 200])
def test_mlx_lm_turns_the_same_way(length, kind, noise, assert_close):
    rotation, _, _, theta, scaling = kinds(16)[kind]
    theirs = initialize_rope(16, theta, rotation.traditional, scaling, 2048)
    x, g = noise(2, 3, length, 16), noise(2, 3, length, 16, seed=2)
    y, (dx,) = mx.vjp(theirs, [x], [g])
    assert_close(rope.forward(x, rotation), y[0], 1e-6, "y")
    assert_close(rope.backward(g, rotation), dx, 1e-6, "dx")


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_turns_back(kind, noise, assert_close):
    rotation = kinds(16)[kind][0]
    x = noise(2, 3, 50, 16)
    turned = rope.forward(x, rotation)
    assert mx.abs(turned - x).max().item() > 0.5
    assert_close(rope.backward(turned, rotation), x)
    assert mx.array_equal(turned[:, :, :1], x[:, :, :1])  # position 0 stands still


@pytest.mark.parametrize("dtype, bound", [(mx.bfloat16, 6e-3), (mx.float16, 8e-4)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind, dtype, bound, noise, assert_close):
    rotation = kinds(16)[kind][0]
    x = noise(2, 3, 33, 16, dtype=dtype)
    for turn in (rope.forward, rope.backward):
        found = turn(x, rotation)
        assert found.dtype == dtype
        assert_close(found, turn(x.astype(mx.float32), rotation), bound)


@pytest.mark.parametrize("dims, theta, llama3", [(64, 5e5, (32.0, 1.0, 4.0, 8192)), (128, 5e5, (8.0, 1.0, 4.0, 8192))])
def test_the_frequencies_of_llama_3(dims, theta, llama3, assert_close):
    divisors = llama3_divisors(dims, theta, llama3)
    plain = theta ** (np.arange(0, dims, 2) / dims)
    ratio = divisors / plain
    # all three kinds occur
    assert (ratio == 1).any() and np.isclose(ratio, llama3[0]).any() and ((ratio > 1.01) & (ratio < 0.99 * llama3[0])).any()
    found = rope.llama3_frequencies(dims, theta, llama3)
    for mine, wanted in zip(found.tolist(), divisors.tolist(), strict=True):
        assert mine == pytest.approx(wanted, rel=2e-5)
    theirs = initialize_rope(dims, theta, False, llama3_settings(llama3), 131072)
    assert_close(found, theirs._freqs, 1e-7)
