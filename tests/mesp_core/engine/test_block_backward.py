"""One block backward by every method against MLX's autodiff of a plain block; whole models against mlx-lm's own."""

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch
from mesp_core.engine import block as decoder_block
from mesp_core.engine import mlp
from mesp_core.engine.autodiff import Autodiff
from mesp_core.engine.blockwise import Blockwise
from mesp_core.engine.lean import Lean
from mesp_core.engine.shape import BlockShape
from mesp_core.lifetimes.keep import Keep
from mesp_core.methods import record as kinds
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.ops import lora_linear, pieces
from mesp_core.ops.lora_linear import LoRA
from mesp_core.ops.rope import Rotation
from mesp_core.settings.run_config import RunConfig
from mesp_core.weights.weights import Block, Weights


def rerun_backward(backward):
    return lambda g, x, block, adapters, shape: backward([x, g], block, adapters, shape)


def lean_block_backward(g, x, block, adapters, shape):
    """lean's two passes through a block of its own, of which it keeps nothing."""
    passes = Lean(shape, Keep(1))
    passes.forward(0, [x], block, adapters, None)
    return passes.backward(0, [x, g], block, adapters, None)


# Whatever re-runs blocks is in here, a method that somebody adds among it.
BACKWARDS = {
    name: rerun_backward(record.kind.backward()) for name, record in METHODS.items() if isinstance(record.kind, kinds.Rerun)
}
BACKWARDS["lean"] = lean_block_backward
HIDDEN, INNER, HEADS, KV_HEADS, DIMS, RANK, SCALE = 64, 96, 4, 2, 24, 3, 1.6
SHAPE = BlockShape(HEADS, KV_HEADS, DIMS, 1e-5, Rotation(DIMS, 10000.0))
WIDTHS = {
    "q_proj": (HEADS * DIMS, HIDDEN),
    "k_proj": (KV_HEADS * DIMS, HIDDEN),
    "v_proj": (KV_HEADS * DIMS, HIDDEN),
    "o_proj": (HIDDEN, HEADS * DIMS),
    "gate_proj": (INNER, HIDDEN),
    "up_proj": (INNER, HIDDEN),
    "down_proj": (HIDDEN, INNER),
}
SUBSETS = {
    "all": PROJECTIONS,
    "only q_proj": ("q_proj",),
    "only v_proj": ("v_proj",),
    "only down_proj": ("down_proj",),
    "none on attention": ("gate_proj", "up_proj", "down_proj"),
    "none at all": (),
}


@pytest.fixture
def make_block(make_linear, noise):
    """make_block(dtype) -> (Block, projection -> (W₀, bias) in float32, norms in float32); biases on q, k, v."""

    def make(dtype=mx.float32, kernel="dequantize"):
        linears, dense = {}, {}
        for seed, (name, width) in enumerate(WIDTHS.items()):
            # one of them plain, as in a checkpoint with a module left unquantised
            bits = None if name == "up_proj" else 4
            linears[name], *dense[name] = make_linear(
                *width,
                bits=bits,
                bias=name in ("q_proj", "k_proj", "v_proj"),
                dtype=dtype,
                kernel=kernel,
                seed=seed + 20,
            )
        norms = {
            name: (1 + noise(HIDDEN, seed=seed, scale=0.3)).astype(dtype)
            for seed, name in enumerate(("input_layernorm", "post_attention_layernorm"))
        }
        return Block(linears, norms), dense, {name: w.astype(mx.float32) for name, w in norms.items()}

    return make


@pytest.fixture
def make_adapters(noise):
    """make_adapters(names, dtype) -> projection -> LoRA with A and B not zero."""

    def make(names, dtype=mx.float32):
        return {
            name: LoRA(
                noise(WIDTHS[name][1], RANK, seed=40 + seed, dtype=dtype, scale=WIDTHS[name][1] ** -0.5),
                noise(RANK, WIDTHS[name][0], seed=60 + seed, dtype=dtype, scale=0.3),
                SCALE,
            )
            for seed, name in enumerate(names)
        }

    return make


def reference(plain, g, x, dense, norms, adapters):
    """(y, ∂x, projection -> (∂A, ∂B)) of the plain block."""
    frequencies = mx.array((10000.0 ** (-np.arange(0, DIMS, 2) / DIMS)).astype(np.float32))

    def run(x, *arrays):
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        found = {name: (a, b, SCALE) for name, (a, b) in zip(adapters, pairs, strict=True)}
        return plain.block(x, dense, norms, found, SHAPE, frequencies)

    arrays = [array for lora in adapters.values() for array in (lora.a, lora.b)]
    (y,), (dx, *gradients) = mx.vjp(run, [x, *arrays], [g])
    return y, dx, dict(zip(adapters, zip(gradients[::2], gradients[1::2], strict=True), strict=True))


@pytest.mark.parametrize("names", SUBSETS.values(), ids=SUBSETS)
@pytest.mark.parametrize("method", BACKWARDS)
@pytest.mark.parametrize("batch, length", [(1, 1), (2, 7), (1, 33)])
def test_one_block(batch, length, method, names, make_block, make_adapters, noise, plain, assert_close):
    block, dense, norms = make_block()
    adapters = make_adapters(names)
    x, g = noise(batch, length, HIDDEN, seed=1), noise(batch, length, HIDDEN, seed=2)
    y, dx, expected = reference(plain, g, x, dense, norms, adapters)
    assert_close(decoder_block.forward(x, block, adapters, SHAPE), y, name="y")
    found_dx, found = BACKWARDS[method](g, x, block, adapters, SHAPE)
    assert_close(found_dx, dx, name="dx")
    assert set(found) == set(names)
    for name, (da, db) in expected.items():
        for part, mine, wanted in (("a", found[name][0], da), ("b", found[name][1], db)):
            # at a single position nothing depends on q and k: their gradients are 0 up to rounding
            if length == 1 and name in ("q_proj", "k_proj"):
                assert mx.abs(mine).max().item() < 1e-5 and mx.abs(wanted).max().item() < 1e-5
            else:
                assert mx.linalg.norm(wanted).item() > 0
                assert_close(mine, wanted, name=f"{name}.{part}")


@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
@pytest.mark.parametrize("method", BACKWARDS)
def test_half_precision_stays_and_is_near_float32(method, kernel, make_block, make_adapters, noise, plain, assert_close):
    """bfloat16 activations with float32 adapters, the default of a run on Metal: within 6 % in every tensor.

    MLX's own quantised product on the CPU adds up in bfloat16, which takes half of that.
    """
    block, dense, norms = make_block(mx.bfloat16, kernel)
    adapters = make_adapters(PROJECTIONS)
    x, g = noise(2, 9, HIDDEN, seed=1, dtype=mx.bfloat16), noise(2, 9, HIDDEN, seed=2, dtype=mx.bfloat16)
    y, dx, expected = reference(plain, *(a.astype(mx.float32) for a in (g, x)), dense, norms, adapters)
    found_y = decoder_block.forward(x, block, adapters, SHAPE)
    found_dx, found = BACKWARDS[method](g, x, block, adapters, SHAPE)
    assert (found_y.dtype, found_dx.dtype) == (mx.bfloat16, mx.bfloat16)
    assert_close(found_y, y, 2e-2, "y")
    assert_close(found_dx, dx, 6e-2, "dx")
    for name, pair in expected.items():
        for mine, wanted in zip(found[name], pair, strict=True):
            assert mine.dtype == mx.float32
            assert_close(mine, wanted, 6e-2, name)


@pytest.mark.parametrize("method", BACKWARDS)
def test_adapters_gradients_are_in_the_adapters_dtype(method, make_block, make_adapters, noise):
    block, _, _ = make_block()
    adapters = make_adapters(PROJECTIONS, mx.bfloat16)
    x, g = noise(1, 5, HIDDEN, seed=1), noise(1, 5, HIDDEN, seed=2)
    dx, found = BACKWARDS[method](g, x, block, adapters, SHAPE)
    assert dx.dtype == mx.float32
    assert {array.dtype for pair in found.values() for array in pair} == {mx.bfloat16}


def test_the_methods_agree_to_the_last_places(make_block, make_adapters, noise, assert_close):
    block, _, _ = make_block()
    adapters = make_adapters(PROJECTIONS)
    x, g = noise(2, 7, HIDDEN, seed=1), noise(2, 7, HIDDEN, seed=2)
    results = [method(g, x, block, adapters, SHAPE) for method in BACKWARDS.values()]
    for dx, gradients in results[1:]:
        assert_close(dx, results[0][0], 2e-6)
        for name in PROJECTIONS:
            for mine, first in zip(gradients[name], results[0][1][name], strict=True):
                assert_close(mine, first, 5e-6, name)


@pytest.mark.parametrize("targets", [PROJECTIONS, ("down_proj",), ("gate_proj",), ()], ids=str)
@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
def test_the_mlp_by_parts_is_the_whole(kernel, targets, make_block, make_adapters, noise, assert_close, monkeypatch):
    """In parts of 32 and of 64 of the 96 features, the last of which is shorter; the gate with a bias as well."""
    block, _, _ = make_block(kernel=kernel)
    gate = replace(block.linears["gate_proj"], bias=noise(INNER, seed=9))
    block = Block(block.linears | {"gate_proj": gate}, block.norms)
    adapters = make_adapters(targets)
    x, g = noise(2, 7, HIDDEN, seed=1), noise(2, 7, HIDDEN, seed=2)
    expected, expected_gradients = BACKWARDS["mebp"](g, x, block, adapters, SHAPE)
    for features, parts in ((32, 3), (64, 2)):
        monkeypatch.setattr(pieces, "MESP_FEATURES", features)
        monkeypatch.setattr(pieces, "MLP_FEATURES", features)
        gate, _, down = mlp.one_kernel(block.linears)
        assert len(list(mlp.feature_ranges(gate, down, features * HIDDEN))) == parts
        dx, gradients = BACKWARDS["mesp"](g, x, block, adapters, SHAPE)
        assert_close(dx, expected, 5e-6)
        assert gradients.keys() == expected_gradients.keys()
        for name in targets:
            for mine, wanted in zip(gradients[name], expected_gradients[name], strict=True):
                assert mine.shape == wanted.shape
                assert_close(mine, wanted, 5e-6, name)


@pytest.mark.parametrize("method, times", [("mesp", 8), ("mesp-store-h", 4)])
def test_store_h_makes_each_h_once(method, times, make_block, make_adapters, noise, monkeypatch):
    """The ablation's whole difference: `mesp` makes the h of attention's projections in the re-run and again.

    The MLP is re-run and taken backward in one go (engine/mlp.py), so its h exist once in either and are not counted.
    """
    calls, right = [], lora_linear.low_rank
    monkeypatch.setattr(lora_linear, "low_rank", lambda x, lora: calls.append(x.shape) or right(x, lora))
    block, _, _ = make_block()
    x, g = noise(1, 5, HIDDEN, seed=1), noise(1, 5, HIDDEN, seed=2)
    BACKWARDS[method](g, x, block, make_adapters(PROJECTIONS), SHAPE)
    assert len(calls) == times


# Whole models


def engine_of(folder, scale, method="mesp", dtype=mx.float32, kernel="auto", mode="streamed"):
    """The whole method on a checkpoint."""
    opened = Weights(open_checkpoint(folder), dtype, kernel, mode)
    shape, layers = BlockShape.of(opened.checkpoint.architecture), opened.checkpoint.architecture.num_hidden_layers
    return Blockwise(opened, scale, METHODS[method].kind.passes(shape, Keep(layers)))


@pytest.fixture(scope="module")
def batch():
    """Two samples of 9 positions; the second is padded from 5 on, the first has labels masked in its middle."""
    rng = np.random.default_rng(3)
    inputs, labels = (rng.integers(0, 300, (2, 9)).astype(np.int32) for _ in range(2))
    labels[0, 2:4] = -1
    inputs[1, 5:], labels[1, 5:] = 0, -1
    return Batch(inputs, labels, tokens=int((labels >= 0).sum()))


def adapters_for(folder, **changes):
    config = RunConfig(rank=4, alpha=8.0, **changes)
    return initial_adapters(open_checkpoint(folder).architecture, config, b_scale=0.1), config.scale


@pytest.fixture(scope="module")
def judged(request, batch):
    """judged(folder name) -> (Σ loss, gradients) by mlx-lm, made once."""
    known = {}

    def judge(name):
        if name not in known:
            folder = request.getfixturevalue(name)
            adapters, scale = adapters_for(folder)
            method = Autodiff(folder, adapters, scale, mx.float32, checkpointing=False)
            known[name] = method.loss_and_gradients(adapters, batch, 1 / batch.tokens)
            method.close()
        return known[name]

    return judge


@pytest.mark.parametrize("name", ["qwen2_folder", "llama_folder"])
@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
@pytest.mark.parametrize("mode", ["streamed", "resident"])
@pytest.mark.parametrize("method", BACKWARDS)
def test_loss_and_every_gradient_equal_mlx_lms(method, mode, kernel, name, judged, batch, request, assert_close):
    folder = request.getfixturevalue(name)
    adapters, scale = adapters_for(folder)
    loss, expected = judged(name)
    engine = engine_of(folder, scale, method, kernel=kernel, mode=mode)
    phases = []
    found_loss, found = engine.loss_and_gradients(adapters, batch, 1 / batch.tokens, phases.append)
    assert phases == ["forward", "loss", "backward"]
    assert found_loss.item() == pytest.approx(loss.item(), rel=2e-6)
    assert set(found) == set(expected) == set(adapters)
    for path, pair in expected.items():
        assert set(found[path]) == set(pair) == {"lora_a", "lora_b"}
        for part, gradient in pair.items():
            assert mx.linalg.norm(gradient).item() > 1e-6  # B is not zero: signal in every tensor
            assert_close(found[path][part], gradient, name=f"{path}.{part}")


@pytest.mark.parametrize("method", BACKWARDS)
def test_a_subset_of_targets(method, llama_folder, batch, assert_close):
    adapters, scale = adapters_for(llama_folder, target_modules=("k_proj", "up_proj"))
    judge = Autodiff(llama_folder, adapters, scale, mx.float32, checkpointing=False)
    loss, expected = judge.loss_and_gradients(adapters, batch, 0.1)
    engine = engine_of(llama_folder, scale, method)
    found_loss, found = engine.loss_and_gradients(adapters, batch, 0.1)
    assert found_loss.item() == pytest.approx(loss.item(), rel=2e-6)
    assert set(found) == set(expected) == set(adapters) and len(adapters) == 4
    for path in expected:
        for part, gradient in expected[path].items():
            assert_close(found[path][part], gradient, name=f"{path}.{part}")


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}, {"rope_scaling": None}], ids=str)
def test_other_llamas(changes, tmp_path, llama_config, random_tensors, write_folder, noise, batch, assert_close):
    """A bias on every attention or MLP projection, and one with plain rotation; nothing quantised."""
    config = llama_config(quantization=None, **changes)
    config = {key: value for key, value in config.items() if value is not None}
    tensors = random_tensors(config, mx.float32)
    names = {
        "attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp_bias": ("gate_proj", "up_proj", "down_proj"),
    }
    for setting in changes:
        for path in [path for path in tensors if path.endswith(tuple(f"{n}.weight" for n in names.get(setting, ("-",))))]:
            width = tensors[path].shape[0]
            tensors[path.replace(".weight", ".bias")] = noise(width, seed=len(tensors), scale=0.3)
    folder = write_folder(tmp_path / "model", config, tensors)
    adapters, scale = adapters_for(folder)
    loss, expected = Autodiff(folder, adapters, scale, mx.float32, checkpointing=False).loss_and_gradients(
        adapters, batch, 0.1
    )
    engine = engine_of(folder, scale)
    found_loss, found = engine.loss_and_gradients(adapters, batch, 0.1)
    assert found_loss.item() == pytest.approx(loss.item(), rel=2e-6)
    for path in expected:
        for part, gradient in expected[path].items():
            assert_close(found[path][part], gradient, name=f"{path}.{part}")


def test_what_stands_in_the_padding_changes_nothing(qwen2_folder, batch, assert_close):
    adapters, scale = adapters_for(qwen2_folder)
    engine = engine_of(qwen2_folder, scale)
    loss, expected = engine.loss_and_gradients(adapters, batch, 0.1)
    inputs = batch.inputs.copy()
    inputs[1, 5:] = [7, 250, 31, 4]
    other, found = engine.loss_and_gradients(adapters, Batch(inputs, batch.labels, batch.tokens), 0.1)
    assert other.item() == loss.item()
    for path in expected:
        for part, gradient in expected[path].items():
            assert_close(found[path][part], gradient, 1e-6, path)


def test_the_weight_scales_gradients_and_not_the_loss(qwen2_folder, batch, assert_close):
    adapters, scale = adapters_for(qwen2_folder)
    engine = engine_of(qwen2_folder, scale)
    judge = Autodiff(qwen2_folder, adapters, scale, mx.float32, checkpointing=False)
    for method in (engine, judge):
        loss, whole = method.loss_and_gradients(adapters, batch, 1.0)
        same, part = method.loss_and_gradients(adapters, batch, 0.125)
        assert same.item() == pytest.approx(loss.item(), rel=1e-6)
        for path in whole:
            assert_close(part[path]["lora_a"], whole[path]["lora_a"] / 8, 2e-6, path)


def test_the_gradient_is_the_slope_of_the_loss(qwen2_folder, batch):
    """Without any autodiff: along the gradient g, the loss rises by ‖g‖² a unit."""
    adapters, scale = adapters_for(qwen2_folder)
    engine = engine_of(qwen2_folder, scale)
    _, gradients = engine.loss_and_gradients(adapters, batch, 1.0)
    square = sum((g * g).sum().item() for pair in gradients.values() for g in pair.values())
    step = 0.02 / math.sqrt(square)

    def loss_at(distance):
        moved = {
            path: {part: array + distance * gradients[path][part] for part, array in pair.items()}
            for path, pair in adapters.items()
        }
        return engine.loss_and_gradients(moved, batch, 1.0)[0].item()

    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(square, rel=5e-3)


@pytest.mark.parametrize("checkpointing, dequantize", [(True, False), (False, True)], ids=["checkpointing", "dequantised"])
@pytest.mark.parametrize("name", ["qwen2_folder", "llama_folder"])
def test_autodiffs_variants_give_the_same(name, checkpointing, dequantize, judged, batch, request, assert_close):
    folder = request.getfixturevalue(name)
    adapters, scale = adapters_for(folder)
    loss, expected = judged(name)
    method = Autodiff(folder, adapters, scale, mx.float32, checkpointing, dequantize)
    try:
        phases = []
        found_loss, found = method.loss_and_gradients(adapters, batch, 1 / batch.tokens, phases.append)
    finally:
        method.close()
    assert phases == ["all"]
    assert found_loss.item() == pytest.approx(loss.item(), rel=2e-6)
    for path in expected:
        for part, gradient in expected[path].items():
            assert_close(found[path][part], gradient, name=f"{path}.{part}")


def test_close_restores_the_blocks_class(qwen2_folder):
    from mlx_lm.models import qwen2

    before = qwen2.TransformerBlock.__call__
    adapters, scale = adapters_for(qwen2_folder)
    method = Autodiff(qwen2_folder, adapters, scale, mx.float32, checkpointing=True)
    assert qwen2.TransformerBlock.__call__ is not before
    method.close()
    assert qwen2.TransformerBlock.__call__ is before
    plain = Autodiff(qwen2_folder, adapters, scale, mx.float32, checkpointing=False)
    assert qwen2.TransformerBlock.__call__ is before
    plain.close()


@pytest.mark.parametrize("name", ["qwen2_folder", "llama_folder"])
def test_logits_are_mlx_lms(name, batch, request, assert_close):
    folder = request.getfixturevalue(name)
    adapters, scale = adapters_for(folder)
    judge = Autodiff(folder, adapters, scale, mx.float32, checkpointing=False)
    judge.loss_and_gradients(adapters, batch, 1.0)  # puts the adapters in
    engine = engine_of(folder, scale)
    logits = engine.logits(adapters, batch.inputs)
    assert logits.dtype == mx.float32
    assert_close(logits, judge.model(mx.array(batch.inputs)))


@pytest.mark.parametrize("method", ["mesp", "lean"])
@pytest.mark.parametrize("name, dtype", [("qwen2_folder", mx.bfloat16), ("llama_folder", mx.float16)])
def test_half_precision_models_are_near_float32(name, dtype, method, judged, batch, request, relative_error):
    """Loss within 0.5 %, the whole gradient within 5 % of float32, in the checkpoint's own dtype."""
    folder = request.getfixturevalue(name)
    adapters, scale = adapters_for(folder)
    loss, expected = judged(name)
    engine = engine_of(folder, scale, method, dtype)
    found_loss, found = engine.loss_and_gradients(adapters, batch, 1 / batch.tokens)
    assert found_loss.item() == pytest.approx(loss.item(), rel=5e-3)

    def flat(tree):
        return mx.concatenate([mx.flatten(tree[path][part]) for path in sorted(tree) for part in ("lora_a", "lora_b")])

    assert {g.dtype for pair in found.values() for g in pair.values()} == {mx.float32}
    assert relative_error(flat(found), flat(expected)) < 5e-2
