"""Adapters: initial values, saving whole or not at all, and mlx-lm loading what was saved."""

import json
import os

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

from mesp_core.adapters.adapter import CONFIG_FILE, WEIGHTS_FILE, initial_adapters, load_adapter, save_adapter
from mesp_core.engine.blockwise import Blockwise
from mesp_core.engine.shape import BlockShape
from mesp_core.errors import MespError, UsageError
from mesp_core.lifetimes.keep import Keep
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import PROJECTIONS, projection_path
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.settings.run_config import RunConfig
from mesp_core.weights.weights import Weights

CONFIG = RunConfig(rank=4, alpha=6.0, target_modules=("q_proj", "o_proj", "down_proj"))


@pytest.fixture
def architecture(llama_folder):
    return open_checkpoint(llama_folder).architecture


@pytest.fixture
def adapters(architecture):
    return initial_adapters(architecture, CONFIG, b_scale=0.1)


def equal(one, other):
    assert set(one) == set(other)
    return all(mx.array_equal(one[path][part], other[path][part]) for path in one for part in ("lora_a", "lora_b"))


def leftovers(parent, *known):
    return sorted(path.name for path in parent.iterdir() if path.name not in known)


# Initial values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_initial_values(dtype, architecture):
    """A uniform within ±1/√in as in mlx-lm, B zero, in the adapters' dtype and with the projections' shapes."""
    tree = initial_adapters(architecture, RunConfig(rank=8, adapter_dtype=dtype))
    assert list(tree) == [projection_path(layer, name) for layer in range(2) for name in PROJECTIONS]
    for path, pair in tree.items():
        out_features, in_features = architecture.projection_shape(path.rsplit(".", 1)[1])
        a, b = pair["lora_a"], pair["lora_b"]
        assert (a.shape, b.shape) == ((in_features, 8), (8, out_features))
        assert a.dtype == b.dtype == getattr(mx, dtype)
        assert mx.abs(b).max().item() == 0
        values = np.array(a.astype(mx.float32)) * in_features**0.5
        assert 0.9 < np.abs(values).max() <= 1.004  # rounding to bfloat16 may pass the bound
        assert abs(values.mean()) < 0.1 and abs(values.std() - 3**-0.5) < 0.05


def test_only_the_targets(architecture, adapters):
    assert {path.rsplit(".", 1)[1] for path in adapters} == set(CONFIG.target_modules)
    assert len(adapters) == 2 * 3


def test_the_same_seed_gives_the_same_whatever_else_is_adapted(architecture):
    few = initial_adapters(architecture, CONFIG)
    assert equal(few, initial_adapters(architecture, CONFIG))
    whole = initial_adapters(architecture, CONFIG.replace(target_modules=PROJECTIONS, method="autodiff", steps=3))
    assert equal(few, {path: whole[path] for path in few})


def test_every_tensor_and_every_seed_has_values_of_its_own(architecture):
    trees = [initial_adapters(architecture, RunConfig(rank=4, seed=seed)) for seed in (0, 1, 2**63 - 1)]
    seen = [np.array(pair["lora_a"])[:48].tobytes() for tree in trees for pair in tree.values()]
    assert len(set(seen)) == len(seen)


def test_a_b_that_is_not_zero_for_gradient_checks(architecture):
    zero, signal = (initial_adapters(architecture, CONFIG, b_scale=scale) for scale in (0.0, 0.1))
    for path in zero:
        assert mx.array_equal(zero[path]["lora_a"], signal[path]["lora_a"])
        assert np.array(signal[path]["lora_b"]).std() == pytest.approx(0.1, rel=0.25)


# Saving and loading


def test_saved_and_loaded(tmp_path, adapters):
    folder = tmp_path / "runs" / "mesp" / "adapter"
    save_adapter(folder, adapters, CONFIG, num_layers=2, step=7)
    tree, scale = load_adapter(folder)
    assert scale == CONFIG.scale == 1.5 and equal(tree, adapters)
    assert leftovers(folder) == [CONFIG_FILE, WEIGHTS_FILE]
    assert leftovers(folder.parent, "adapter") == []
    description = json.loads((folder / CONFIG_FILE).read_text())
    assert (description["fine_tune_type"], description["num_layers"]) == ("lora", 2)
    assert description["lora_parameters"] == {
        "rank": 4,
        "scale": 1.5,
        "dropout": 0.0,
        "keys": ["mlp.down_proj", "self_attn.o_proj", "self_attn.q_proj"],
    }
    assert description["mesp"]["step"] == 7
    assert RunConfig.from_dict(description["mesp"]["config"]) == CONFIG
    assert folder.stat().st_mode & 0o777 == 0o755 and (folder / WEIGHTS_FILE).stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_are_kept(dtype, tmp_path, architecture):
    config = CONFIG.replace(adapter_dtype=dtype)
    adapters = initial_adapters(architecture, config, b_scale=0.1)
    save_adapter(tmp_path / "adapter", adapters, config, 2, 1)
    tree, _ = load_adapter(tmp_path / "adapter")
    assert equal(tree, adapters)
    assert {array.dtype for pair in tree.values() for array in pair.values()} == {getattr(mx, dtype)}


def test_saved_again_it_is_the_new_one(tmp_path, adapters, architecture):
    folder = tmp_path / "adapter"
    save_adapter(folder, adapters, CONFIG, 2, 1)
    old, _ = load_adapter(folder)
    newer = initial_adapters(architecture, CONFIG.replace(seed=5), b_scale=0.1)
    save_adapter(folder, newer, CONFIG.replace(alpha=8.0), 2, 2)
    tree, scale = load_adapter(folder)
    assert scale == 2.0 and equal(tree, newer)
    assert equal(old, adapters)  # what was loaded before is still what was loaded
    assert leftovers(tmp_path, "adapter") == [] and leftovers(folder) == [CONFIG_FILE, WEIGHTS_FILE]


@pytest.mark.parametrize("name, targets", [("qwen2", PROJECTIONS), ("llama", PROJECTIONS), ("llama", ("v_proj", "up_proj"))])
def test_mlx_lm_loads_it_and_computes_the_same(name, targets, tmp_path, request, relative_error):
    """It must change the logits, and into ours: an adapter that loads as a silent no-op would pass anything less."""
    model_folder = request.getfixturevalue(f"{name}_folder")
    checkpoint = open_checkpoint(model_folder)
    config = CONFIG.replace(target_modules=targets)
    adapters = initial_adapters(checkpoint.architecture, config, b_scale=0.1)
    save_adapter(tmp_path / "adapter", adapters, config, checkpoint.architecture.num_hidden_layers, 1)

    def model():
        model, _ = load_model(model_folder, lazy=True)
        model.set_dtype(mx.float32)
        return model

    ids = np.array([[5, 299, 0, 17, 17, 3], [8, 1, 2, 3, 4, 5]], np.int32)
    base = model()(mx.array(ids))
    adapted = load_adapters(model(), str(tmp_path / "adapter"))(mx.array(ids))
    tree, scale = load_adapter(tmp_path / "adapter")
    passes = METHODS["mesp"].kind.passes(BlockShape.of(checkpoint.architecture), Keep(2))
    engine = Blockwise(Weights(checkpoint, mx.float32), scale, passes)
    ours = engine.logits(tree, ids)
    assert relative_error(adapted, base) > 1e-2
    assert mx.abs(ours - adapted).max().item() <= 1e-4
    assert mx.abs(engine.logits({}, ids) - base).max().item() <= 1e-4


# Failing


def fail_in_replace(monkeypatch, call):
    """The n-th os.replace of the save fails, as on a full or vanished disk."""
    right, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        return right(source, target)

    monkeypatch.setattr(os, "replace", replace)


def fail_in_weights(monkeypatch):
    def save(path, *arguments):
        with open(path, "wb") as stream:
            stream.write(b"half")
        raise RuntimeError("[save_safetensors] Failed to write")

    monkeypatch.setattr(mx, "save_safetensors", save)


def fail_in_description(monkeypatch):
    def write_text(self, text, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", write_text)


FAILURES = {
    "weights": fail_in_weights,
    "description": fail_in_description,
    "first replace": lambda monkeypatch: fail_in_replace(monkeypatch, 1),
    "second replace": lambda monkeypatch: fail_in_replace(monkeypatch, 2),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_save_leaves_the_old_adapter_whole(failure, tmp_path, adapters, architecture, monkeypatch):
    """Weights and scale belong together: new ones of one with old ones of the other are no adapter."""
    folder = tmp_path / "adapter"
    save_adapter(folder, adapters, CONFIG, 2, 1)
    newer = initial_adapters(architecture, CONFIG.replace(seed=5), b_scale=0.1)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(MespError) as caught:
            save_adapter(folder, newer, CONFIG.replace(alpha=8.0), 2, 2)
    assert str(folder) in str(caught.value) and caught.value.exit_code == 1
    assert leftovers(tmp_path, "adapter") == [] and leftovers(folder) == [CONFIG_FILE, WEIGHTS_FILE]
    tree, scale = load_adapter(folder)
    assert equal(tree, adapters)
    assert scale == CONFIG.scale


@pytest.mark.parametrize("failure", ["weights", "description"])
def test_a_failing_first_save_leaves_nothing(failure, tmp_path, adapters, monkeypatch):
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(MespError, match="adapter: the adapter cannot be written"):
            save_adapter(tmp_path / "adapter", adapters, CONFIG, 2, 1)
    assert leftovers(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path, adapters):
    (tmp_path / "file").write_text("a file")
    for folder in (tmp_path / "file", tmp_path / "file" / "adapter"):
        with pytest.raises(MespError, match="cannot be written"):
            save_adapter(folder, adapters, CONFIG, 2, 1)
    assert leftovers(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "a file"


def refused(folder, said=""):
    with pytest.raises(UsageError) as caught:
        load_adapter(folder)
    assert str(folder) in str(caught.value) and said in str(caught.value)


@pytest.fixture
def saved(tmp_path, adapters):
    save_adapter(tmp_path / "adapter", adapters, CONFIG, 2, 1)
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_file_is_missing(name, saved):
    (saved / name).unlink()
    refused(saved, name)


def test_no_folder(tmp_path):
    refused(tmp_path / "nowhere", WEIGHTS_FILE)


@pytest.mark.parametrize("part", [0.5, 0.999])
def test_truncated_weights(part, saved):
    file = saved / WEIGHTS_FILE
    os.truncate(file, int(file.stat().st_size * part))
    refused(saved, "whole")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"lora_parameters": {}}', '{"lora_parameters": 3}', '{"lora_parameters": {"scale": null}}'],
)
def test_a_description_that_is_none(text, saved):
    (saved / CONFIG_FILE).write_text(text)
    refused(saved)


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.layers.0.self_attn.q_proj.lora_a": mx.ones((4, 2))},
        {"model.layers.0.self_attn.q_proj.weight": mx.ones((4, 2))},
        {
            "model.layers.0.self_attn.q_proj.lora_a": mx.ones((4, 2)),
            "model.layers.0.self_attn.q_proj.lora_b": mx.ones((2, 4)),
            "model.layers.0.self_attn.q_proj.m": mx.ones((4,)),
        },
        {"lora_a": mx.ones((4, 2))},
        {},
    ],
    ids=["no B", "full weights", "DoRA", "a name without a module", "nothing in it"],
)
def test_weights_that_are_no_lora(tensors, saved):
    """Also an empty file: it would load as a silent no-op."""
    mx.save_safetensors(str(saved / WEIGHTS_FILE), tensors)
    refused(saved)
