"""What tests of whole methods share: odd small models, batches, the judge, and a way to hold one against the other."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch
from mesp_core.engine import norm, token_loss
from mesp_core.engine import rowwise as chunks
from mesp_core.engine.autodiff import Autodiff
from mesp_core.engine.blockwise import Blockwise
from mesp_core.engine.lean import Lean
from mesp_core.engine.shape import BlockShape
from mesp_core.lifetimes.keep import Keep
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.ops import pieces
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.weights.weights import Weights

RANK, ALPHA = 4, 8.0
# Every projection of this model has a bias and its own number of bits or group size, or is plain.
MIXED = {
    "model.embed_tokens": {"bits": 6, "group_size": 64},
    "model.layers.0.self_attn.q_proj": {"bits": 3, "group_size": 32},
    "model.layers.0.self_attn.k_proj": {"bits": 8, "group_size": 64},
    "model.layers.0.self_attn.o_proj": False,
    "model.layers.0.mlp.gate_proj": {"bits": 8, "group_size": 64},
    "model.layers.0.mlp.up_proj": {"bits": 3, "group_size": 32},
    "model.layers.0.mlp.down_proj": {"bits": 5, "group_size": 64},
    "model.layers.1.mlp.gate_proj": False,
    "model.layers.1.mlp.down_proj": {"bits": 6, "group_size": 32},
    "model.layers.2.mlp.down_proj": False,
    "lm_head": {"bits": 8, "group_size": 32},
}


@pytest.fixture(scope="session")
def mixed_folder(tmp_path_factory, llama_config, random_tensors, write_folder, noise):
    """Three blocks with a bias on all seven projections, 6 query heads of 32 on 2, a head of its own; see MIXED."""
    config = llama_config(
        num_hidden_layers=3,
        intermediate_size=192,
        num_attention_heads=6,
        head_dim=32,
        attention_bias=True,
        mlp_bias=True,
        quantization={"bits": 4, "group_size": 32} | MIXED,
    )
    return write_folder(tmp_path_factory.mktemp("mixed"), config, with_biases(random_tensors(config), noise))


@pytest.fixture(scope="session")
def float_folder(tmp_path_factory, llama_config, random_tensors, write_folder):
    """Plain float16 weights, 3 query heads of 16 on 1: together narrower than the model."""
    config = llama_config(num_attention_heads=3, num_key_value_heads=1, head_dim=16, quantization=None)
    del config["quantization"]
    return write_folder(tmp_path_factory.mktemp("floats"), config, random_tensors(config, mx.float16))


def with_biases(tensors, noise):
    """The same with a bias for every projection of a block."""
    weights = {path: array for path, array in tensors.items() if ".layers." in path and path.endswith("_proj.weight")}
    biases = {
        path.replace(".weight", ".bias"): noise(array.shape[0], seed=seed, scale=0.3, dtype=mx.bfloat16)
        for seed, (path, array) in enumerate(weights.items())
    }
    return tensors | biases


@pytest.fixture(scope="session")
def make_batch():
    """make_batch(*lengths, holes=True, seed=3) -> samples padded to the longest; `holes`: every third has no label."""

    def make(*lengths, holes=True, seed=3):
        rng = np.random.default_rng(seed)
        inputs, labels = (rng.integers(0, 300, (len(lengths), max(lengths))).astype(np.int32) for _ in range(2))
        for row, length in enumerate(lengths):
            inputs[row, length:], labels[row, length:] = 0, -1
            if holes:
                labels[row, 1 + row : length : 3] = -1
        return Batch(inputs, labels, int((labels >= 0).sum()), tuple(lengths))

    return make


@pytest.fixture
def model_of(request):
    """model_of(name, **changes) -> checkpoint, adapters with B ≠ 0, scale; of qwen2, llama, mixed or float."""

    def make(name, **changes):
        checkpoint = open_checkpoint(request.getfixturevalue(f"{name}_folder"))
        config = RunConfig(rank=RANK, alpha=ALPHA, **changes)
        adapters = initial_adapters(checkpoint.architecture, config, b_scale=0.1)
        return SimpleNamespace(checkpoint=checkpoint, adapters=adapters, config=config, scale=config.scale)

    return make


@pytest.fixture(scope="session")
def known():
    """What the judge has said already."""
    return {}


@pytest.fixture
def judged(known):
    """judged(model, batch) -> (Σ loss, gradients) by mlx-lm in float32; each model and batch once in a session."""

    def judge(model, batch):
        key = (model.checkpoint.folder, tuple(model.adapters), batch.inputs.tobytes(), batch.labels.tobytes())
        if key not in known:
            method = Autodiff(model.checkpoint.folder, model.adapters, model.scale, mx.float32, dequantize=True)
            known[key] = method.loss_and_gradients(model.adapters, batch, 1 / batch.tokens)
            method.close()
        return known[key]

    return judge


@pytest.fixture
def built(tmp_path):
    """built(model, method, **changes) -> the method as a run would build it; closed with the test."""
    made = []

    def build(model, method, **changes):
        settings = {"method": method, "dtype": "float32", "scratch_dir": str(tmp_path / "scratch")}
        config = model.config.replace(**settings | changes)
        made.append(build_method(config, model.checkpoint, model.adapters)[0])
        return made[-1]

    yield build
    for method in made:
        method.close()


@pytest.fixture
def lean_with():
    """lean_with(model, dtype=float32, kernel="auto", **keep) -> lean that keeps so much."""

    def make(model, dtype=mx.float32, kernel="auto", **keep):
        architecture = model.checkpoint.architecture
        passes = Lean(BlockShape.of(architecture), Keep(architecture.num_hidden_layers, **keep))
        return Blockwise(Weights(model.checkpoint, dtype, kernel), model.scale, passes)

    return make


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Everything that is done in pieces is done in small ones: 16 tokens, 7 rows of a norm, tiles of 8 queries by 16 keys.

    None of these divides the 37 + 37 rows of the batches here.
    """
    monkeypatch.setattr(chunks, "TOKENS", 16)
    monkeypatch.setattr(token_loss, "TOKENS", 9)
    monkeypatch.setattr(norm, "NORM_TOKENS", 7)
    monkeypatch.setattr(pieces, "TILE_ROWS", 24)
    monkeypatch.setattr(pieces, "TILE_KEYS", 16)


@pytest.fixture(scope="session")
def assert_same(relative_error):
    """assert_same(found, expected, bound, loss_bound): (Σ loss, gradients) each; every tensor, and none else."""

    def check(found, expected, bound=1e-5, loss_bound=1e-6):
        (loss, tree), (expected_loss, expected_tree) = found, expected
        assert loss.item() == pytest.approx(expected_loss.item(), rel=loss_bound)
        assert set(tree) == set(expected_tree)
        errors = {
            f"{path}.{part}": relative_error(tree[path][part], array)
            for path, pair in expected_tree.items()
            for part, array in pair.items()
        }
        worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
        assert errors[worst] <= bound, f"{worst}: {errors[worst]:.2e}"
        return errors[worst]

    return check
