"""Are the gradients right? Every method's loss and gradients on one batch, held against autodiff of mlx-lm's own model.

The judge is mlx-lm's model under `value_and_grad`, its frozen matrices dequantised in float32: the same numbers. On the CPU
it then computes in float64. In float32 the judge's own rounding would count as the method's: on SmolLM2 in 3 bits it is
1.5e-5 from the float64 gradient, further than what it judges. Where a float64 copy does not fit into the machine's free
memory, and on a GPU, it is float32; where that does not fit either, the judge keeps the quantised product, which on the CPU
is further off still (qwen2.5-0.5b geometry, 32 tokens: 1.0e-5 against 2.2e-6). The result says which.

The parent side (`run_check`) loads no MLX; this file run as a module is the child that computes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mesp_core.errors import CheckpointError
from mesp_core.processes.child_side import Request, Say, serve
from mesp_core.processes.parent_side import Child
from mesp_core.processes.start import blas_for_child
from mesp_core.runs.events import finite
from mesp_core.runs.prepare import Prepared
from mesp_core.settings.run_config import RunConfig

# Standard deviation of B: adapters fresh from initialisation have B = 0 and would leave ∂A and half the paths unchecked.
B_SCALE = 0.01
# dtype -> largest ‖Δ‖/‖g‖ of the whole gradient and of any one tensor, and relative difference of the loss. In float32
# what two correct float32 implementations differ by; in 16 bits the rounding of activations.
BOUNDS = {
    "float32": (1e-5, 5e-5, 2e-6),
    "bfloat16": (5e-2, 2e-1, 1e-2),
    "float16": (1e-2, 5e-2, 2e-3),
}


@dataclass(frozen=True)
class CheckResult:
    """One method against autodiff: its loss, relative differences, the worst tensor, the bounds that hold."""

    method: str
    loss: float
    loss_difference: float
    gradient_difference: float
    worst_tensor_difference: float
    worst_tensor: str
    tensors: int
    dtype: str
    judge: str
    bounds: tuple[float, float, float]
    ok: bool

    def to_dict(self) -> dict:
        """The object printed by --json."""
        return {"event": "check", **finite(asdict(self))}


def run_check(config: RunConfig, methods: Sequence[str], prepared: Prepared) -> Iterator[CheckResult]:
    """Yield a result for each method; one batch of `config.batch_size` samples, the last one padded if there are several.

    Raises:
        UsageError: if a method's options cannot be met, such as a scratch folder that cannot be written to.
        MespError: if the child fails.
    """
    request = {
        "config": config.to_dict(),
        "methods": list(methods),
        "model_folder": str(prepared.source.path),
        "tokens_folder": str(prepared.tokens.path),
    }
    with Child("mesp_core.bench.gradient_check", blas=blas_for_child()[0]) as child:
        for values in child.replies(request, "check"):
            yield CheckResult(**values | {"bounds": tuple(values["bounds"])})


def _batch(tokens_folder: Path, config: RunConfig):
    from dataclasses import replace

    from mesp_core.data.batches import NO_LOSS, batches
    from mesp_core.data.token_set import TokenSet

    batch = next(batches(TokenSet.open(tokens_folder), config.batch_size, config.seed))
    if config.batch_size > 1:  # whatever the data: padding is among what is checked
        labels = batch.labels.copy()
        labels[-1, max(1, 2 * labels.shape[1] // 3) :] = NO_LOSS
        batch = replace(batch, labels=labels, tokens=int((labels >= 0).sum()))
    return batch


def _compute(request: Request) -> Iterator[CheckResult]:
    import mlx.core as mx
    import numpy as np

    from mesp_core.adapters.adapter import initial_adapters
    from mesp_core.device.in_use import on_gpu
    from mesp_core.engine.autodiff import Autodiff
    from mesp_core.machine.memory import machine_memory
    from mesp_core.models.checkpoint import open_checkpoint
    from mesp_core.models.non_finite import first_non_finite
    from mesp_core.training.build import activation_dtype, build_method

    mx.set_cache_limit(0)
    config = RunConfig.from_dict(request["config"])
    checkpoint = open_checkpoint(Path(request["model_folder"]))
    adapters = initial_adapters(checkpoint.architecture, config, B_SCALE)
    batch = _batch(Path(request["tokens_folder"]), config)

    def gradients_of(method) -> tuple[float, dict[str, np.ndarray]]:  # noqa: ANN001 (any Method)
        try:
            loss, tree = method.loss_and_gradients(adapters, batch, 1.0 / batch.tokens)
        finally:
            method.close()
        flat = {f"{path}.{part}": np.array(g.astype(mx.float32)) for path, pair in tree.items() for part, g in pair.items()}
        return loss.item() / batch.tokens, flat

    # The copy, its source, and as much again for the activations.
    fits, exact = (checkpoint.parameters * size * 2 < machine_memory()[1] for size in (4, 8))
    exact = exact and not on_gpu()
    within = mx.float64 if exact else None
    judge_loss, judge = gradients_of(
        Autodiff(checkpoint.folder, adapters, config.scale, mx.float32, dequantize=fits, within=within)
    )
    if not math.isfinite(judge_loss) and (found := first_non_finite(checkpoint)):
        raise CheckpointError(found)
    judge_name = f"mlx-lm, {'float64' if exact else 'float32'}, " + ("dequantised" if fits else "quantized_matmul")
    dtype = str(activation_dtype(config, checkpoint)).removeprefix("mlx.core.")
    bounds = BOUNDS[dtype]
    for name in request["methods"]:
        method, _ = build_method(config.replace(method=name), checkpoint, adapters)
        loss, own = gradients_of(method)
        method = None
        # A tensor that a method leaves out counts as zero: wrong by all of it.
        difference = {key: float(np.linalg.norm(own.get(key, 0.0) - judge[key])) for key in judge}
        norms = {key: float(np.linalg.norm(judge[key])) for key in judge}
        relative = {key: difference[key] / norms[key] if norms[key] else float(difference[key] > 0) for key in judge}
        worst = max(relative, key=lambda key: (np.isnan(relative[key]), relative[key]))
        whole = float(np.linalg.norm(list(difference.values())) / np.linalg.norm(list(norms.values())))
        loss_difference = abs(loss - judge_loss) / abs(judge_loss)
        # Written so that a NaN fails, and so does a method that gives other tensors than the judge.
        ok = own.keys() == judge.keys() and all(
            value <= bound for value, bound in zip((whole, relative[worst], loss_difference), bounds, strict=True)
        )
        yield CheckResult(
            method=name,
            loss=loss,
            loss_difference=loss_difference,
            gradient_difference=whole,
            worst_tensor_difference=relative[worst],
            worst_tensor=worst,
            tensors=len(own),
            dtype=dtype,
            judge=judge_name,
            bounds=bounds,
            ok=bool(ok),
        )


def _work(request: Request, say: Say) -> None:
    for result in _compute(request):
        say(asdict(result))


if __name__ == "__main__":
    serve(_work)
