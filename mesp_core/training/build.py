"""From a configuration and an opened checkpoint to the method that trains it."""

from collections.abc import Callable

import mlx.core as mx

from mesp_core.device.in_use import on_gpu
from mesp_core.engine import rowwise as chunks
from mesp_core.engine.block_inputs import InMemory, OnDisk, scratch_folder
from mesp_core.engine.blockwise import Blockwise
from mesp_core.engine.method import AdapterTree, Method
from mesp_core.engine.shape import BlockShape
from mesp_core.engine.used_shapes import used_shapes
from mesp_core.lifetimes.keep import Keep
from mesp_core.machine.memory import MB
from mesp_core.methods.names import parse_method
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.planner import in_words, plan
from mesp_core.settings.run_config import RunConfig
from mesp_core.weights.weights import FLOAT_DTYPES, Weights


def activation_dtype(config: RunConfig, checkpoint: Checkpoint) -> mx.Dtype:
    """The configured dtype; `auto` is the checkpoint's own on a GPU, float32 on the CPU."""
    if config.dtype != "auto":
        return getattr(mx, config.dtype)
    return FLOAT_DTYPES[checkpoint.float_dtype] if on_gpu() else mx.float32


def build_method(
    config: RunConfig,
    checkpoint: Checkpoint,
    adapters: AdapterTree,
    log: Callable[[str, str], None] = lambda level, message: None,
) -> tuple[Method, dict[str, str]]:
    """The method, and which kernel serves which kind of layer; `log` hears (level, message) of each fallback."""
    spec = parse_method(config.method)
    dtype = activation_dtype(config, checkpoint)
    kind = spec.record.kind
    if not kind.blockwise:
        # Here and not at the top, because mlx_lm is large and the other methods work without it.
        from mesp_core.engine.autodiff import Autodiff

        checkpointing = bool(spec.option("grad-checkpoint"))
        method = Autodiff(checkpoint.folder, adapters, config.scale, dtype, checkpointing)
        return method, {"all": "mlx-lm"}
    weights = Weights(checkpoint, dtype, config.kernel, mode=str(spec.option("weights")))
    if weights.fallback is not None:
        log("warning", f"weights=mapped cannot be used here, so they are streamed: {weights.fallback}")
    tokens = config.batch_size * config.seq_len
    rows = min(chunks.TOKENS, tokens)  # that the loss, and lean throughout, take at once
    weights.check_kernels(rows if kind.keeps else tokens, used_shapes, {rows, tokens % rows} - {0})
    kernels = {layer: verdict.kernel for layer, verdict in weights.verdicts.items()} or {"all": weights.kernel}
    for layer, verdict in weights.verdicts.items():
        if not verdict.ok:
            log(
                "warning",
                f"quantized_matmul is wrong on this device for layers {layer} (relative error {verdict.forward_error:.1e} "
                f"forward, {verdict.backward_error:.1e} backward); these are dequantised and multiplied instead.",
            )
    shape = BlockShape.of(checkpoint.architecture)
    layers = checkpoint.architecture.num_hidden_layers
    keep, where = Keep(layers), spec.option("inputs")
    if spec.record.has_budget and spec.option("budget") is not None:
        chosen = plan(config, checkpoint)
        keep, where = chosen.keep, chosen.inputs
        log("info", f"plan for {spec.key}: {in_words(chosen)}; predicted peak {chosen.allocator_peak / MB:,.1f} MB")
    inputs = (
        OnDisk(scratch_folder(config.scratch_dir), bool(spec.option("tmpfs")), layers) if where == "disk" else InMemory()
    )
    full_loss = spec.option("loss") == "full"
    return Blockwise(weights, config.scale, kind.passes(shape, keep), inputs, full_loss), kernels
