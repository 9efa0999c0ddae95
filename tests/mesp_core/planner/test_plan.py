"""The planner against MLX's own count, and what it says of more."""

import gc
import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch
from mesp_core.machine.memory import MB
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.synthetic import GEOMETRIES, write_checkpoint
from mesp_core.ops import frozen_matmul, pieces
from mesp_core.planner import BudgetTooSmall, in_words, plan
from mesp_core.planner.plans import sizes_of
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.training.train import train
from mesp_core.weights.weights import Weights

SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
QWEN = GEOMETRIES["qwen2.5-0.5b"] | SMALL | {"intermediate_size": 1408, "vocab_size": 2000}
LLAMA = GEOMETRIES["llama-3.2-1b"] | SMALL
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 896, "vocab_size": 1500, "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small checkpoints by name, opened."""
    root = tmp_path_factory.mktemp("models")
    found = {}
    for name, geometry in {"qwen": QWEN, "llama": LLAMA}.items():
        write_checkpoint(root / name, geometry)
        found[name] = open_checkpoint(root / name)
    return found


def config_of(**changes):
    return RunConfig(**{"optimizer": "sgd", "rank": 8, "seq_len": 128, "dtype": "float32"} | changes)


def measured_peak(config, checkpoint):
    """The allocator's peak in a real step, in bytes, over what was held before. Adam's state exists from the second one."""
    steps = 1 if config.optimizer == "sgd" else 2
    gc.collect()  # what tests before have left must not go while this one measures
    mx.synchronize()
    before = mx.get_active_memory()
    adapters = initial_adapters(checkpoint.architecture, config)
    method, _ = build_method(config, checkpoint, adapters)
    ids = np.random.default_rng(0).integers(0, 1500, (config.batch_size, config.seq_len + 1)).astype(np.int32)
    batch = Batch(ids[:, :-1], ids[:, 1:], ids[:, 1:].size, (config.seq_len,) * config.batch_size)
    peaks = []

    def batches():
        while True:
            yield batch

    train(config.replace(steps=steps), method, adapters, batches(), lambda step: peaks.append(step.peak_mb) or True)
    method.close()
    return max(peaks) * MB - before


HALF = {"dtype": "bfloat16", "adapter_dtype": "bfloat16"}
# Configurations that no factor of the planner was fitted to.
RUNS = {
    "lean": ("qwen", {"method": "lean", "seq_len": 96}),
    "lean in bfloat16": ("llama", {"method": "lean", "seq_len": 100, "rank": 32, **HALF}),
    "lean, block inputs on disk": ("llama", {"method": "lean:inputs=disk:tmpfs", "seq_len": 80, "rank": 4}),
    "lean, adamw, two samples": (
        "qwen",
        {"method": "lean", "batch_size": 2, "rank": 32, "optimizer": "adamw", "seq_len": 48},
    ),
    "lean, adamw on float16 adapters": (
        "qwen",
        {"method": "lean", "rank": 64, "optimizer": "adamw", "adapter_dtype": "float16", "seq_len": 48},
    ),
    "mesp, all logits": ("llama", {"method": "mesp:loss=full:weights=resident", "seq_len": 100}),
    "mebp": ("qwen", {"method": "mebp", "seq_len": 112}),
    # The kernel that a Mac uses
    "lean, quantized": ("qwen", {"method": "lean", "kernel": "quantized", "seq_len": 96}),
    "lean in bfloat16, quantized": ("llama", {"method": "lean", "kernel": "quantized", "seq_len": 100, **HALF}),
    "mesp, quantized": ("llama", {"method": "mesp", "kernel": "quantized", "seq_len": 100}),
    "mebp, quantized": ("qwen", {"method": "mebp", "kernel": "quantized", "seq_len": 112}),
}


@pytest.mark.parametrize("model, changes", RUNS.values(), ids=RUNS)
def test_the_allocators_peak_is_predicted(model, changes, checkpoints, exact_memory, tmp_path):
    config = config_of(scratch_dir=str(tmp_path), **changes)
    predicted = plan(config, checkpoints[model]).allocator_peak
    measured = measured_peak(config, checkpoints[model])
    # In bfloat16 much of a small model's peak is short-lived copies, of which MLX holds all or some, by the moment; the plan
    # counts all.
    # With the quantised kernel a backward of so small a model takes 0.7 to 1.3 MB that the plan does not know of; measured,
    # and not yet explained.
    low = 0.66 if config.kernel == "quantized" else 0.95
    assert low * measured <= predicted <= (1.05 if config.dtype == "float32" else 1.16) * measured


def test_a_run_stays_within_its_budget(checkpoints, exact_memory):
    config = config_of(method="lean:inputs=memory:budget=12MB", seq_len=96)
    chosen = plan(config, checkpoints["qwen"])
    limit = 12 * MB
    assert 0.75 * limit <= measured_peak(config, checkpoints["qwen"]) <= limit
    # and what it is given saves time
    assert chosen.step_time_s < 0.95 * plan(config.replace(method="lean"), checkpoints["qwen"]).step_time_s


class TestBudget:
    def test_more_memory_is_never_slower(self, checkpoints):
        plans = [plan(config_of(method=f"lean:budget={size}MB"), checkpoints["qwen"]) for size in range(8, 40, 2)]
        times = [chosen.step_time_s for chosen in plans]
        assert times == sorted(times, reverse=True)
        assert times[-1] < times[0] <= 1.01 * plan(config_of(method="lean"), checkpoints["qwen"]).step_time_s
        keep = plans[-1].keep
        assert (keep.attention, keep.gate, keep.up, keep.sigma) == (2, 2, 2, 2)
        assert "of all 2 blocks" in in_words(plans[-1])

    def test_too_small_a_budget_names_one_that_is_enough(self, checkpoints):
        config = config_of(method="lean:budget=1MB")
        with pytest.raises(BudgetTooSmall, match=r"1\.0 MB is too small.*on disk, takes \d+\.\d MB") as caught:
            plan(config, checkpoints["qwen"])
        enough = config.replace(method=f"lean:budget={caught.value.smallest / 1024:.3f}KB")
        chosen = plan(enough, checkpoints["qwen"])
        assert chosen.inputs == "disk" and not chosen.keep.attention
        assert "block inputs on disk" in in_words(chosen)

    def test_the_method_says_where_block_inputs_are(self, checkpoints):
        """In memory the least is more, and the message says what stands in the way."""
        in_memory, anywhere = [], []
        for method, smallest in ((":inputs=memory", in_memory), ("", anywhere)):
            with pytest.raises(BudgetTooSmall) as caught:
                plan(config_of(method=f"lean{method}:budget=1MB", seq_len=512), checkpoints["qwen"])
            smallest.append(caught.value.smallest)
            assert ("leave inputs=memory out" in str(caught.value)) == bool(method)
        assert anywhere < in_memory
        chosen = plan(config_of(method="lean:inputs=disk:budget=2GB"), checkpoints["qwen"])
        assert chosen.inputs == "disk"


class TestWhatCounts:
    """What changes a plan, and by how much: amounts that are known without a run."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_adam_holds_two_float32_numbers_more_for_each(self, dtype, checkpoints):
        configs = (config_of(method="lean", optimizer=name, adapter_dtype=dtype) for name in ("sgd", "adam"))
        sgd, adam = (plan(config, checkpoints["qwen"]) for config in configs)
        adapters = {part.name: part.nbytes for part in sgd.phases[0].parts}["adapters"]
        moments = 2 * adapters * (1 if dtype == "float32" else 2)
        assert adam.phases[0].nbytes - sgd.phases[0].nbytes == pytest.approx(moments, abs=2)

    def test_block_inputs_on_disk_take_nothing_in_the_loss(self, checkpoints):
        held, gone = (plan(config_of(method=f"lean{o}"), checkpoints["qwen"]) for o in ("", ":inputs=disk"))
        at_loss = [next(phase for phase in chosen.phases if phase.name == "loss").nbytes for chosen in (held, gone)]
        assert at_loss[0] - at_loss[1] == pytest.approx(2 * 128 * 512 * 4, abs=2)

    def test_clipping_has_a_phase_of_its_own(self, checkpoints):
        names = [phase.name for phase in plan(config_of(method="mesp", max_grad_norm=1.0), checkpoints["qwen"]).phases]
        assert names == ["forward", "loss", "backward", "update"]

    def test_autodiff_holds_every_layer(self, checkpoints):
        peaks = [plan(config_of(method=m), checkpoints["qwen"]).allocator_peak for m in ("autodiff", "mebp", "lean")]
        assert peaks == sorted(peaks, reverse=True)
        assert [phase.name for phase in plan(config_of(method="autodiff"), checkpoints["qwen"]).phases] == ["all"]

    def test_the_largest_part_comes_first(self, checkpoints):
        for method in ("lean", "mesp", "mebp", "autodiff"):
            chosen = plan(config_of(method=method), checkpoints["llama"])
            for phase in chosen.phases:
                assert phase.largest.nbytes == max(part.nbytes for part in phase.parts)
            assert chosen.training_memory > chosen.allocator_peak == max(phase.nbytes for phase in chosen.phases)
            assert chosen.fits(chosen.training_memory) and not chosen.fits(chosen.training_memory - 1)


def test_it_loads_no_mlx():
    code = "import sys, mesp_core.planner, mesp_core.commands.plan_report; print(json.dumps('mlx.core' in sys.modules))"
    found = subprocess.run([sys.executable, "-c", "import json;" + code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) is False


@pytest.mark.parametrize("name", ["q_proj", "down_proj"])
def test_the_planner_cuts_a_matrix_where_the_engine_does(name, checkpoints, monkeypatch):
    """In row blocks as they are dequantised, and as the quantised kernel reads them: rounded to 64 rows in both."""
    monkeypatch.setattr(pieces, "STORED_BYTES", 30_000)
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", 30_000)
    checkpoint = checkpoints["qwen"]
    linear = Weights(checkpoint, mx.float32, "quantized").lazy_block(0).linears[name]
    for kernel, blocks in (("quantized", frozen_matmul.stored_blocks), ("dequantize", frozen_matmul.row_blocks)):
        sizes = sizes_of(config_of(kernel=kernel), checkpoint)
        assert sizes.block_rows(sizes.linear(name)) == blocks(linear)[0][1] < linear.out_features
