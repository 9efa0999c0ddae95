"""The computing side of a trial, with BLAS preloaded: does its steps and says what each took.

python -m mesp_core.bench.child
"""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

from mesp_core.bench.trial import BASELINE, BASELINE_PEAK, Trial
from mesp_core.methods.registry import METHODS
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.processes.child_side import Request, Say, serve
from mesp_core.settings.run_config import RunConfig, preset

SEED = 0


def _work(request: Request, say: Say) -> None:
    """Say the baseline, and after each step what it took; what methods log comes between."""
    from mesp_core.adapters.adapter import initial_adapters
    from mesp_core.machine.memory import MB
    from mesp_core.models.checkpoint import open_checkpoint
    from mesp_core.training.baseline import baseline_mb
    from mesp_core.training.build import build_method
    from mesp_core.training.train import StepResult, train

    trial = Trial(**request["trial"] | {"methods": tuple(request["trial"]["methods"])})
    say({"baseline_mb": baseline_mb(METHODS[method.partition(":")[0]] for method in trial.methods)})

    whole = open_checkpoint(Path(request["folder"]))
    checkpoint = _first_blocks(whole, trial.blocks)
    batch = _batch(trial, checkpoint.architecture.vocab_size)
    config = preset("paper", seq_len=trial.seq_len, dtype=trial.dtype, adapter_dtype=trial.dtype, steps=1, seed=SEED)
    engines, keys = {}, {}

    def log(level: str, message: str) -> None:
        say({"log": message})

    try:
        for turn in range(trial.rounds):
            for name in trial.methods:
                own = config.replace(method=keys.setdefault(name, name))
                adapters = initial_adapters(checkpoint.architecture, own)
                if name not in engines:
                    engines[name], _ = build_method(own, checkpoint, adapters, log)
                results: list[StepResult] = []
                train(own, engines[name], adapters, iter([batch]), results.append)
                (result,) = results
                left_out = _left_out(own, whole, checkpoint, adapters)
                say(
                    {
                        "method": name,
                        "key": own.method,
                        "seconds": result.seconds,
                        "peak_by_phase_mb": result.peak_by_phase_mb,
                        "blocks": checkpoint.architecture.num_hidden_layers,
                        "blocks_of_model": whole.architecture.num_hidden_layers,
                        "left_out_mb": {part: n / MB for part, n in left_out.items()},
                    }
                )
                adapters = None
                if name == BASELINE:
                    size = f"{int(result.peak_mb * 1024)}KB"
                    keys = {other: other.replace(BASELINE_PEAK, size) for other in trial.methods} | keys
                if turn == trial.rounds - 1:  # makes room for those that are yet to come
                    engines.pop(name).close()
                    gc.collect()
    finally:
        for engine in engines.values():
            engine.close()


def _first_blocks(checkpoint: Checkpoint, blocks: int) -> Checkpoint:
    """The model cut after so many blocks, with its own embedding, last norm and head; 0: as it is."""
    if not blocks:
        return checkpoint
    return replace(checkpoint, architecture=replace(checkpoint.architecture, num_hidden_layers=blocks))


def _left_out(config: RunConfig, whole: Checkpoint, checkpoint: Checkpoint, adapters: Any) -> dict[str, int]:
    """The bytes of adapters and, where they are in memory, block inputs of the blocks that were cut off."""
    from mesp_core.methods.names import parse_method
    from mesp_core.training.build import activation_dtype

    blocks = checkpoint.architecture.num_hidden_layers
    missing = whole.architecture.num_hidden_layers - blocks
    if not missing:
        return {}
    held = sum(array.nbytes for pair in adapters.values() for array in pair.values())
    left_out = {"adapters": missing * held // blocks}
    if parse_method(config.method).option("inputs") == "memory":
        item = activation_dtype(config, checkpoint).size
        left_out["block inputs"] = missing * config.seq_len * checkpoint.architecture.hidden_size * item
    return left_out


def _batch(trial: Trial, vocab_size: int):
    """One sample of random ids; as many of its labels as are asked for, at random places."""
    import numpy as np

    from mesp_core.data.batches import NO_LOSS, Batch

    rng = np.random.default_rng(SEED)
    ids = rng.integers(0, vocab_size, (1, trial.seq_len + 1)).astype(np.int32)
    labels = ids[:, 1:].copy()
    tokens = max(1, round(trial.labelled * trial.seq_len))
    labels[0, rng.permutation(trial.seq_len)[tokens:]] = NO_LOSS
    return Batch(ids[:, :-1].copy(), labels, tokens)


if __name__ == "__main__":
    serve(_work)
