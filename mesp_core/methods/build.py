"""From a configuration and an opened checkpoint to the method that trains it."""

from collections.abc import Callable

import mlx.core as mx

from mesp_core.checkpoint import Checkpoint
from mesp_core.config import RunConfig
from mesp_core.methods import mebp, mesp
from mesp_core.methods.block import used_shapes
from mesp_core.methods.blockwise import Blockwise
from mesp_core.methods.method import AdapterTree, Method
from mesp_core.methods.names import parse_method
from mesp_core.weights import FLOAT_DTYPES, Weights

BLOCK_BACKWARDS = {
    "mebp": mebp.block_backward,
    "mesp": mesp.block_backward,
    "mesp-store-h": mesp.block_backward_store_h,
}


def activation_dtype(config: RunConfig, checkpoint: Checkpoint) -> mx.Dtype:
    """The configured dtype; `auto` is the checkpoint's own on a GPU, float32 on the CPU."""
    if config.dtype != "auto":
        return getattr(mx, config.dtype)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return mx.float32 if on_cpu else FLOAT_DTYPES[checkpoint.float_dtype]


def build_method(
    config: RunConfig,
    checkpoint: Checkpoint,
    adapters: AdapterTree,
    log: Callable[[str, str], None] = lambda level, message: None,
) -> tuple[Method, dict[str, str]]:
    """The method, and which kernel serves which kind of layer; `log` hears (level, message) of each fallback."""
    spec = parse_method(config.method)
    dtype = activation_dtype(config, checkpoint)
    if spec.name == "autodiff":
        from mesp_core.methods.autodiff import Autodiff  # mlx_lm is large: only whom needs it loads it

        checkpointing = bool(spec.options.get("grad-checkpoint"))
        method = Autodiff(checkpoint.folder, adapters, config.scale, dtype, checkpointing)
        return method, {"all": "mlx-lm"}
    weights = Weights(checkpoint, dtype, config.kernel, resident=spec.options.get("weights") == "resident")
    weights.check_kernels(config.batch_size * config.seq_len, used_shapes)
    kernels = {kind: verdict.kernel for kind, verdict in weights.verdicts.items()} or {"all": weights.kernel}
    for kind, verdict in weights.verdicts.items():
        if not verdict.ok:
            log(
                "warning",
                f"quantized_matmul is wrong on this device for layers {kind} (relative error {verdict.forward_error:.1e} "
                f"forward, {verdict.backward_error:.1e} backward); these are dequantised and multiplied instead.",
            )
    return Blockwise(weights, config.scale, BLOCK_BACKWARDS[spec.name]), kernels
