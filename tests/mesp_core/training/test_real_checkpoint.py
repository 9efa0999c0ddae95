"""The main job on real input: SmolLM2-135M in 4 bits and WikiText-2. Gradients, losses, and an adapter that others load."""

import json

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.adapters.adapter import load_adapter
from mesp_core.bench.gradient_check import run_check
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.runs.comparison import Comparison
from mesp_core.runs.out_folder import OutFolder
from mesp_core.runs.prepare import prepare
from mesp_core.settings.run_config import preset
from mesp_core.training.build import build_method

METHODS = ["mebp", "mesp", "lean"]


@pytest.fixture(scope="module")
def real_config(smollm2, wikitext2):
    """real_config(**changes) -> 32 tokens of WikiText-2 on SmolLM2 in float32."""

    def make(**changes):
        settings = {"model": str(smollm2), "data": str(wikitext2), "seq_len": 32, "dtype": "float32", "max_samples": 64}
        return preset("first-run", **settings | changes)

    return make


@pytest.mark.parametrize("batch_size", [1, 2], ids=["one sample", "two, one of them padded"])
def test_the_gradients_are_autodiffs(real_config, batch_size):
    config = real_config(batch_size=batch_size)
    methods = METHODS if batch_size == 1 else ["lean"]
    results = list(run_check(config, methods, prepare(config)))
    assert [result.method for result in results] == methods
    for result in results:
        assert result.ok, result
        assert result.tensors == 30 * 7 * 2 and result.dtype == "float32" and "dequantised" in result.judge
        assert result.gradient_difference <= 1e-5 and result.worst_tensor_difference <= 5e-5
        assert 1 < result.loss < 10  # a pretrained model on English text; chance is 10.8


def compared(config, methods, out):
    """Run a comparison to its end; the losses of each method."""
    comparison = Comparison(config, methods, prepare(config), OutFolder(out))
    list(comparison.run())
    assert comparison.outcome.kind == "finished", comparison.outcome.message
    return {method: [step.loss for step in result.steps] for method, result in comparison.results.methods.items()}


def test_the_methods_losses_are_equal_at_every_step(real_config, tmp_path):
    config = real_config(steps=2, optimizer="sgd", learning_rate=1e-4)
    losses = compared(config, METHODS, tmp_path / "out")
    assert list(losses) == METHODS
    assert len(losses["mebp"]) == 2 and all(1 < loss < 10 for loss in losses["mebp"])
    for method in METHODS[1:]:
        assert losses[method] == pytest.approx(losses["mebp"], rel=1e-6, abs=0)


def test_the_adapter_works_in_mlx_lm_as_it_does_here(real_config, smollm2, tmp_path):
    """Loaded by mlx_lm.load it changes the logits, and to the very values that the engine gives."""
    import mlx_lm

    config = real_config(steps=2, optimizer="adamw", learning_rate=1e-3)
    compared(config, ["lean"], tmp_path / "out")
    folder = tmp_path / "out" / "lean" / "adapter"
    text = "The history of the city begins"

    base, tokenizer = mlx_lm.load(str(smollm2))
    adapted, _ = mlx_lm.load(str(smollm2), adapter_path=str(folder))
    ids = np.array([tokenizer.encode(text)], np.int32)
    theirs = {}
    for name, model in (("base", base), ("adapted", adapted)):
        model.set_dtype(mx.float32)
        model.eval()
        theirs[name] = model(mx.array(ids))
        mx.eval(theirs[name])

    adapters, scale = load_adapter(folder)
    assert len(adapters) == 210 and scale == config.scale
    method, _ = build_method(config, open_checkpoint(smollm2), adapters)
    ours = method.logits(adapters, ids)
    assert ours.shape == theirs["adapted"].shape == (1, ids.shape[1], 49152)

    def apart(a, b):
        return mx.abs(a - b).max().item()

    assert apart(theirs["adapted"], theirs["base"]) > 0.1
    # logits are up to 43
    assert apart(ours, theirs["adapted"]) <= 2e-4
    assert apart(method.logits({}, ids), theirs["base"]) <= 2e-4  # without an adapter, the base
    described = json.loads((folder / "adapter_config.json").read_text())
    assert described["num_layers"] == 30 and described["fine_tune_type"] == "lora"
