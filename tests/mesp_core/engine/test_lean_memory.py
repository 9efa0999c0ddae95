"""lean's allocator peaks in the 0.5B's geometry, of one or two blocks, in bfloat16 with bfloat16 adapters.

Measured in a process of its own with BLAS preloaded, as the worker is. From run to run a phase differs by up to 1.2 MB, by
when MLX's thread frees what an eval has used; the bounds are 3 % above the largest of six runs. What is held between the
blocks is tested in engine/test_lean_held.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch
from mesp_core.machine.memory import MB
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.synthetic import GEOMETRIES, write_checkpoint
from mesp_core.processes.start import blas_for_child, child_environment
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.training.train import train

ROOT = Path(__file__).resolve().parents[3]
VOCAB = 4096  # small, so that the loss does not hide the blocks
# name -> method, blocks, tokens
CASES = {
    "lean": ("lean", 2, 128),
    "mesp": ("mesp", 2, 128),
    "mebp": ("mebp", 2, 128),
    "512 tokens": ("lean", 1, 512),
    "1024 tokens": ("lean", 1, 1024),
}


def measure(folder, names):
    """Each case's allocator peak by phase, in MB, of one SGD step."""
    mx.set_cache_limit(0)
    for name in names:
        method, blocks, tokens = CASES[name]
        dtypes = {"dtype": "bfloat16", "adapter_dtype": "bfloat16"}
        config = RunConfig(method=method, seq_len=tokens, optimizer="sgd", steps=1, **dtypes)
        checkpoint = open_checkpoint(folder / str(blocks))
        adapters = initial_adapters(checkpoint.architecture, config)
        engine, _ = build_method(config, checkpoint, adapters)
        ids, results = np.random.default_rng(0).integers(0, VOCAB, (2, 1, tokens)).astype(np.int32), []
        batch = Batch(*ids, tokens, (tokens,))
        train(config, engine, adapters, iter([batch]), results.append)
        engine.close()
        engine = adapters = batch = None
        yield name, results[0].peak_by_phase_mb


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """case -> phase -> MB."""
    folder = tmp_path_factory.mktemp("lean-memory")
    for blocks in (1, 2):
        geometry = GEOMETRIES["qwen2.5-0.5b"] | {"num_hidden_layers": blocks, "vocab_size": VOCAB}
        write_checkpoint(folder / str(blocks), geometry)
    blas, _ = blas_for_child()
    environment = child_environment(blas) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(folder), *CASES]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


# case -> phase -> MB: the largest seen
SEEN = {
    "lean": {"forward": 5.41, "loss": 7.48, "backward": 5.99},
    "512 tokens": {"forward": 10.25, "loss": 12.92, "backward": 13.11},
    "1024 tokens": {"forward": 13.37, "loss": 16.42, "backward": 19.47},
}


@pytest.mark.parametrize("case", SEEN)
def test_no_phase_takes_more_than_it_did(case, peaks):
    over = {phase: (mb, SEEN[case][phase]) for phase, mb in peaks[case].items() if mb > 1.03 * SEEN[case][phase]}
    assert not over


def test_lean_takes_less_than_mesp_takes_less_than_mebp(peaks):
    lean, mesp, mebp = (max(peaks[method].values()) for method in ("lean", "mesp", "mebp"))
    assert lean <= 0.4 * mesp and mesp <= 0.9 * mebp, (lean, mesp, mebp)


def test_the_peak_grows_by_so_much_a_token(peaks):
    """Linearly, 14 KB a token with one block: eight arrays of tokens × 896 in bfloat16. A block more adds its input.

    The peaks themselves vary by half a MB, 1 KB a token, with what MLX does ahead.
    """
    few, many = (max(peaks[f"{tokens} tokens"].values()) for tokens in (512, 1024))
    assert (many - few) * MB / 512 <= 16 * 1024


if __name__ == "__main__":
    print(json.dumps(dict(measure(Path(sys.argv[1]), sys.argv[2:]))))
