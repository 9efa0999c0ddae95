"""This machine's figures, measured: about two seconds in a child process with BLAS preloaded, as a worker has it.

`ensure` is the parent side; `python -m mesp_core.bench.machine_figures` is the child that computes.
"""

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mesp_core.errors import MespError
from mesp_core.machine import figures
from mesp_core.machine.figures import Shapes
from mesp_core.machine.model import MachineModel
from mesp_core.machine.recorded import nearest
from mesp_core.processes.child_side import Request, Say, serve
from mesp_core.processes.parent_side import ask
from mesp_core.processes.start import blas_for_child

TOKENS, RANK, HEADS, HEAD_DIM = 256, 8, 4, 64  # of the matrices that are multiplied
# Results of one evaluation on a GPU, so that a wait does not count with each. On the CPU the memory of several would be new
# each time, and its pages cost more than what is measured.
AT_ONCE = 8
BUDGET_S, FEWEST = 0.07, 3  # for one figure, and how often it is taken at least
LONGEST_S = 0.3  # for one quantised product: on a CPU it takes long
FILE_BYTES, READ_BYTES = 8 * 1024 * 1024, 512 * 1024


def ensure(shapes: Shapes, say: Callable[[str], None]) -> MachineModel:
    """This machine's figures: from the cache, else measured now and kept there.

    Where that fails, the recorded figures of the machine nearest to this one. `say` hears in a sentence what takes time and
    what fails.
    """
    if (known := figures.cached(shapes)) is not None:
        return known
    say("Measuring this machine's speed: about two seconds, once for such a model.")
    try:
        found = ask("mesp_core.bench.machine_figures", asdict(shapes), "it cannot be measured", blas=blas_for_child()[0])
        return figures.keep(shapes, found)
    except (MespError, TypeError, ValueError) as error:
        recorded = nearest(shapes.dtype)
        say(f"This machine's speed is not known, so that of {recorded.name} is taken: {error}")
        return recorded


def _work(request: Request, say: Say) -> None:
    say(_figures(Shapes(**request)))


def _figures(shapes: Shapes) -> dict[str, Any]:
    """The fields of a MachineModel that are measured, by name."""
    import mlx.core as mx

    from mesp_core.ops import exponential, frozen_matmul, pieces

    mx.set_cache_limit(0)
    dtype, times = getattr(mx, shapes.dtype), 1 if exponential.on_cpu() else AT_ONCE
    hidden, features = shapes.hidden, min(shapes.intermediate, pieces.dequantized_rows(shapes.hidden))

    def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        array = (0.1 * mx.random.normal(shape)).astype(dtype)
        mx.eval(array)
        return array

    def rate(count: float, *works: Callable[[], mx.array]) -> float:
        """So much a second, of what each of these does."""
        taken = [_seconds(lambda work=work: mx.eval([work() for _ in range(times)])) for work in works]
        return times * count * len(works) / sum(taken)

    def thin(x: mx.array, a: mx.array, h: mx.array) -> float:
        count = TOKENS * hidden * RANK
        return rate(count, lambda: x @ a, lambda: h @ a.T, lambda: x.T @ h)

    x, w, g = normal(TOKENS, hidden), normal(features, hidden), normal(TOKENS, features)
    own, other = (normal(TOKENS, hidden, dtype=dtype) for _ in range(2))
    a, h = normal(hidden, RANK), normal(TOKENS, RANK)
    q, k = (normal(1, HEADS, TOKENS, HEAD_DIM, dtype=dtype) for _ in range(2))
    p = normal(1, HEADS, TOKENS, TOKENS)
    launch = _launch_s(mx)
    found = {
        "gpu": not exponential.on_cpu(),
        "wait_s": max(0.0, _seconds(lambda: mx.eval(a[0] + 1)) - launch),
        "submit_s": max(0.0, _submit_s(mx) - launch),
        "launch_s": launch,
        "products": rate(TOKENS * features * hidden, lambda: x @ w.T, lambda: g @ w),
        "own_products": rate(HEADS * TOKENS**2 * HEAD_DIM, lambda: q @ k.swapaxes(-1, -2)),
        "thin_products": thin(own, a.astype(dtype), h.astype(dtype)),
        "thin_float_products": thin(x, a, h),
        "exponentials": rate(x.size, lambda: exponential.exp(x)),
        "softmaxes": rate(p.size, lambda: mx.softmax(p, axis=-1)),
        "elements": rate(x.size, lambda: own * other),
        **_of_files(mx),
    }
    # What there is to dequantise in a model of plain matrices is their own number type.
    bits, group = shapes.bits or 4, shapes.group_size or 64
    stored = mx.quantize(w, group, bits)
    mx.eval(stored)
    linear = frozen_matmul.FrozenLinear(*stored, bits=bits, group_size=group)
    found["dequantized"] = rate(w.size, lambda: frozen_matmul.dequantized_rows(linear, slice(None)))
    for name, transpose in (("quantized_forward", True), ("quantized_backward", False)):
        found[name] = _quantized(mx, shapes, bits, group, transpose)
    return found


def _quantized(mx: Any, shapes: Shapes, bits: int, group: int, transpose: bool) -> float:
    """Multiply-adds a second of MLX's own product: of a whole matrix and all tokens, or of a part where that takes long."""
    found, dtype = 0.0, getattr(mx, shapes.dtype)
    for rows, features in ((16, 128), (64, 512), (TOKENS, shapes.intermediate)):
        features = min(features, shapes.intermediate) // group * group
        count = rows * features * shapes.hidden
        expected_s = count / found if found else 0.0
        if expected_s > LONGEST_S:
            break
        weight, *scales = mx.quantize(0.1 * mx.random.normal((features, shapes.hidden)), group, bits)
        scales = [part.astype(dtype) for part in scales]
        x = mx.random.normal((rows, shapes.hidden if transpose else features)).astype(dtype)
        mx.eval(weight, scales, x)
        times = AT_ONCE if found and expected_s < LONGEST_S / AT_ONCE else 1

        def multiply(x: Any = x, weight: Any = weight, scales: Any = scales, times: int = times) -> None:
            mx.eval([mx.quantized_matmul(x, weight, *scales, transpose, group, bits) for _ in range(times)])

        found = times * count / _seconds(multiply)
    return found


def _launch_s(mx: Any, kernels: int = 200) -> float:
    """Of one kernel in a chain of them."""
    one = mx.array(1.0)

    def chain() -> None:
        x = one
        for _ in range(kernels):
            x = x + 1
        mx.eval(x)

    return _seconds(chain) / kernels


def _submit_s(mx: Any, times: int = 20) -> float:
    """Of handing over a kernel at a time, without waiting for it."""
    one = mx.array(1.0)

    def chain() -> None:
        x = one
        for _ in range(times):
            x = x + 1
            mx.async_eval(x)
        mx.eval(x)

    return _seconds(chain) / times


def _of_files(mx: Any) -> dict[str, float]:
    """Bytes a second out of a mapped file that was just read, and in and out of a scratch file."""
    import numpy as np

    from mesp_core.files.cache import cache_dir

    cache_dir().mkdir(parents=True, exist_ok=True)
    content = np.random.default_rng(0).bytes(FILE_BYTES)
    with tempfile.TemporaryFile(dir=cache_dir()) as file:

        def scratch() -> None:
            os.pwrite(file.fileno(), content, 0)
            os.pread(file.fileno(), FILE_BYTES, 0)

        disk = _seconds(scratch)
        view = np.frombuffer(mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ), np.uint32)
    step = READ_BYTES // view.itemsize

    def read() -> None:
        for start in range(0, len(view), step):
            mx.eval(mx.array(view[start : start + step]))

    copy = _seconds(read)
    return {"file_bytes": FILE_BYTES / copy, "disk_bytes": 2 * FILE_BYTES / disk}


def _seconds(work: Callable[[], None]) -> float:
    """The median of what it takes, after a first time; once, where that takes long."""
    taken, started = [], time.perf_counter()
    work()
    slow = time.perf_counter() - started > BUDGET_S
    started = time.perf_counter()
    while not taken or (not slow and (len(taken) < FEWEST or time.perf_counter() - started < BUDGET_S)):
        before = time.perf_counter()
        work()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


if __name__ == "__main__":
    serve(_work)
