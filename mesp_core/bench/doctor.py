"""`mesp doctor`: what device, BLAS, kernels and memory meter are in use here, measured rather than assumed.

`examine` is the parent side; `python -m mesp_core.bench.doctor` is the child that runs MLX.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mesp_core.bench.machine_figures import ensure
from mesp_core.machine.device import battery, describe_machine, thermal_state
from mesp_core.machine.figures import Shapes
from mesp_core.machine.footprint import meter_name, read_footprint
from mesp_core.machine.memory import MB, machine_memory
from mesp_core.models.synthetic import GEOMETRIES
from mesp_core.processes.child_side import Request, Say, serve
from mesp_core.processes.parent_side import ask
from mesp_core.processes.start import blas_for_child

TOKENS = 128  # of the kernel check, and of the matrices with which speed is measured
GEOMETRY, BITS, GROUP_SIZE = GEOMETRIES["qwen2.5-0.5b"], 4, 64  # of these matrices


def examine(say: Callable[[str], None]) -> dict[str, Any]:
    """Everything `mesp doctor` prints, by name. `say` hears in a sentence what takes time.

    Raises:
        MespError: if MLX cannot be run at all.
    """
    blas, sentence = blas_for_child()
    measured = ask("mesp_core.bench.doctor", {}, "MLX does not run here", blas=blas)
    dtype = "bfloat16" if "gpu" in measured["device"] else "float32"
    sizes = GEOMETRY["hidden_size"], GEOMETRY["intermediate_size"]
    speed = ensure(Shapes(*sizes, BITS, GROUP_SIZE, dtype, Shapes.rounded(TOKENS)), say)
    total, available = machine_memory()
    level = battery()
    return {
        "machine": describe_machine(),
        "memory": {"total_mb": total / MB, "available_mb": available / MB},
        "blas": sentence,
        "meter": meter_name(),
        "thermal_state": thermal_state(),
        "battery": {"percent": level.percent, "plugged": level.plugged},
        **measured,
        "speed": asdict(speed),
    }


def _measure(request: Request, say: Say) -> None:
    import os
    import time

    import mlx.core as mx

    from mesp_core.engine.used_shapes import used_shapes
    from mesp_core.files.bundled import bundled_path
    from mesp_core.models.checkpoint import open_checkpoint
    from mesp_core.weights.weights import Weights, default_kernel

    footprint_mb = read_footprint(os.getpid()).current / MB
    a = mx.random.normal((1024, 1024))
    mx.eval(a @ a)
    start = time.perf_counter()
    mx.eval(a @ a, a @ a, a @ a)
    gflops = 3 * 2 * 1024**3 / (time.perf_counter() - start) / 1e9

    weights = Weights(open_checkpoint(bundled_path("tiny")), mx.float32, kernel="quantized")
    weights.check_kernels(TOKENS, used_shapes)
    kernels = {
        kind: {
            "quantized_matmul": "right" if v.ok else "WRONG",
            "forward_error": v.forward_error,
            "backward_error": v.backward_error,
        }
        for kind, v in weights.verdicts.items()
    }
    say(
        {
            "device": str(mx.default_device()),
            "device_info": dict(mx.device_info()),
            "float32_gflops": gflops,
            "frozen_matmul": default_kernel(),
            "kernels": kernels,
            "worker_footprint_after_import_mb": footprint_mb,
        }
    )


if __name__ == "__main__":
    serve(_measure)
