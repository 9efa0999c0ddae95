"""The MLP as a sum over ranges of its features: forward and backward against MLX's autodiff of the plain formula."""

from dataclasses import replace

import mlx.core as mx
import pytest

from mesp_core.engine import mlp
from mesp_core.engine.gradient_sums import GradientSums
from mesp_core.engine.mlp import Activations
from mesp_core.ops import pieces
from mesp_core.ops.lora_linear import LoRA

TOKENS, HIDDEN, INNER, RANK, SCALE = 11, 64, 192, 3, 1.6
NAMES = mlp.PROJECTIONS
WIDTHS = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
# gate, up, down: bits and group size, None where plain
KINDS = {
    "alike": ((4, 32), (4, 32), (4, 32)),
    "groups of 64": ((8, 64), (3, 32), (6, 64)),
    "gate plain": (None, (4, 32), (4, 64)),
    "down plain": ((4, 32), (4, 32), None),
    "all plain": (None, None, None),
}
KEPT = [(), ("gate",), ("up",), ("sigma",), ("gate", "up"), ("up", "sigma"), ("gate", "up", "sigma")]
PARTS = {"all at once": 10**9, "two": 128 * HIDDEN, "one by one": 1}


@pytest.fixture
def layers(make_linear):
    """layers(kind, kernel) -> (projection -> FrozenLinear, projection -> (W₀, bias) in float32); all have a bias."""

    def make(kind, kernel="dequantize", dtype=mx.float32):
        linears, dense = {}, {}
        for seed, (name, how) in enumerate(zip(NAMES, KINDS[kind], strict=True)):
            bits, group = how or (None, 32)
            linears[name], *dense[name] = make_linear(
                *WIDTHS[name], bits=bits, group_size=group, bias=True, kernel=kernel, dtype=dtype, seed=seed + 5
            )
        return linears, dense

    return make


@pytest.fixture
def loras(noise):
    """loras(names) -> projection -> LoRA, A and B not zero."""

    def make(names=NAMES):
        return {
            name: LoRA(
                noise(WIDTHS[name][1], RANK, seed=40 + seed, scale=WIDTHS[name][1] ** -0.5),
                noise(RANK, WIDTHS[name][0], seed=60 + seed, scale=0.3),
                SCALE,
            )
            for seed, name in enumerate(names)
        }

    return make


def reference(plain, g, n, dense, adapters):
    """(y, ∂n, projection -> (∂A, ∂B)) of the plain MLP."""

    def run(n, *arrays):
        found = {name: (*arrays[2 * i : 2 * i + 2], SCALE) for i, name in enumerate(adapters)}
        gate, up = (plain.linear(n, *dense[name], *found.get(name, ())) for name in NAMES[:2])
        return plain.linear(plain.gated_mlp(gate, up), *dense["down_proj"], *found.get("down_proj", ()))

    arrays = [array for lora in adapters.values() for array in (lora.a, lora.b)]
    (y,), (dn, *gradients) = mx.vjp(run, [n, *arrays], [g])
    return y, dn, dict(zip(adapters, zip(gradients[::2], gradients[1::2], strict=True), strict=True))


def both_ways(g, n, linears, adapters, part_elements, kept, rows_at_once=TOKENS):
    """(y, ∂n, gradients) by ops under test, so many rows at a time as `lean` goes."""
    sums, y, dn = GradientSums(), [], []
    pieces = [slice(start, min(start + rows_at_once, TOKENS)) for start in range(0, TOKENS, rows_at_once)]
    for rows in pieces:
        y.append(mlp.forward(mlp.operand(n[rows], linears), linears, adapters, part_elements, kept, rows))
    for rows in pieces:
        operands = (mlp.operand(a[rows], linears) for a in (g, n))
        dn.append(mlp.backward(*operands, linears, adapters, sums, part_elements, kept, rows))
    return mx.concatenate(y), mx.concatenate(dn), sums.take(adapters)


@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_by_ranges_it_is_the_whole(kind, parts, kernel, layers, loras, noise, plain, assert_close, monkeypatch):
    monkeypatch.setattr(pieces, "MLP_FEATURES", max(1, min(INNER, parts // HIDDEN)))
    (linears, dense), adapters = layers(kind, kernel), loras()
    n, g = noise(TOKENS, HIDDEN, seed=1), noise(TOKENS, HIDDEN, seed=2)
    nothing = Activations((), mx.float32)
    found = both_ways(g, n, linears, adapters, parts, nothing)
    compare(found, reference(plain, g, n, dense, adapters), assert_close)


@pytest.mark.parametrize("rows", [TOKENS, 4, 1], ids=lambda rows: f"{rows} rows")
@pytest.mark.parametrize("names", KEPT, ids="+".join)
def test_with_what_was_kept(names, rows, layers, loras, noise, plain, assert_close, monkeypatch):
    (linears, dense), adapters = layers("groups of 64"), loras()
    n, g = noise(TOKENS, HIDDEN, seed=1), noise(TOKENS, HIDDEN, seed=2)
    kept = Activations(names, mx.float32)
    found = both_ways(g, n, linears, adapters, 64 * HIDDEN, kept, rows)
    compare(found, reference(plain, g, n, dense, adapters), assert_close)


@pytest.mark.parametrize("names", [("gate_proj",), ("up_proj",), ("down_proj",), ("gate_proj", "down_proj"), ()], ids=str)
def test_projections_without_an_adapter(names, layers, loras, noise, plain, assert_close):
    (linears, dense), adapters = layers("alike"), loras(names)
    n, g = noise(TOKENS, HIDDEN, seed=1), noise(TOKENS, HIDDEN, seed=2)
    found = both_ways(g, n, linears, adapters, 64 * HIDDEN, Activations(("up",), mx.float32), 4)
    compare(found, reference(plain, g, n, dense, adapters), assert_close)


def compare(found, expected, assert_close):
    y, dn, gradients = found
    assert {y.dtype, dn.dtype} == {mx.float32}
    assert_close(y, expected[0], name="y")
    assert_close(dn, expected[1], name="dn")
    assert gradients.keys() == expected[2].keys()
    for name, pair in expected[2].items():
        for mine, wanted in zip(gradients[name], pair, strict=True):
            assert_close(mine, wanted, name=name)


def test_one_layer_that_cannot_be_trusted_takes_all_off_the_kernel(layers):
    """In their parts they have sizes that the check of a dequantised layer never tried."""
    linears, _ = layers("alike", "quantized")
    assert {linear.kernel for linear in mlp.one_kernel(linears)} == {"quantized"}
    for name in NAMES:
        mixed = linears | {name: replace(linears[name], kernel="dequantize")}
        assert {linear.kernel for linear in mlp.one_kernel(mixed)} == {"dequantize"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
@pytest.mark.parametrize("part_elements", [1, 40 * HIDDEN, 64 * HIDDEN, 191 * HIDDEN, 10**9])
def test_ranges_are_every_feature_once_between_groups(part_elements, kernel, kind, layers, monkeypatch):
    monkeypatch.setattr(pieces, "MLP_FEATURES", 64)
    gate, _, down = mlp.one_kernel(layers(kind, kernel)[0])
    ranges = list(mlp.feature_ranges(gate, down, part_elements))
    assert [feature for part in ranges for feature in range(part.start, part.stop)] == list(range(INNER))
    unit = down.group_size or 1
    assert all(part.start % unit == 0 for part in ranges)
    most = max(unit, 64 if kernel == "quantized" else part_elements // HIDDEN)
    assert max(part.stop - part.start for part in ranges) <= most


@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
def test_bfloat16_is_multiplied_in_float32_where_it_is_dequantised(kernel, layers):
    linears, _ = layers("alike", kernel)
    x = mx.ones((2, HIDDEN), mx.bfloat16)
    assert mlp.operand(x, linears).dtype == (mx.float32 if kernel == "dequantize" else mx.bfloat16)


@pytest.mark.parametrize("kernel, bound", [("dequantize", 1e-2), ("quantized", 6e-2)])
def test_half_precision_is_near_float32(kernel, bound, layers, loras, noise, plain, assert_close):
    (linears, dense), adapters = layers("alike", kernel, mx.bfloat16), loras()
    n, g = (noise(TOKENS, HIDDEN, seed=seed, dtype=mx.bfloat16) for seed in (1, 2))
    expected = reference(plain, g.astype(mx.float32), n.astype(mx.float32), dense, adapters)
    kept = Activations(("gate", "up", "sigma"), mx.bfloat16)
    y, dn, gradients = both_ways(g, n, linears, adapters, 64 * HIDDEN, kept, 4)
    assert_close(y, expected[0], bound)
    assert_close(dn, expected[1], bound)
    for name, pair in expected[2].items():
        for mine, wanted in zip(gradients[name], pair, strict=True):
            assert mine.dtype == mx.float32
            assert_close(mine, wanted, bound, name)


class TestActivations:
    def test_what_is_put_is_got_and_the_rest_is_not_there(self, noise):
        kept = Activations(("gate", "sigma"), mx.bfloat16)
        u1, u2 = noise(2, 4, seed=1), noise(2, 4, seed=2)
        rows, features = slice(3, 5), slice(4, 8)
        assert len(kept.put(rows, features, gate=u1, up=u2, sigma=u2)) == 2
        assert kept.keeps("sigma") and not kept.keeps("up")
        found = kept.take("gate", rows, features, mx.float32)
        assert found.dtype == mx.float32 and mx.array_equal(found, u1.astype(mx.bfloat16))
        assert kept.take("gate", rows, features, mx.float32) is None  # it is not kept any longer
        assert kept.take("sigma", slice(0, 3), features, mx.float32) is None
        assert kept.take("up", rows, features, mx.float32) is None
