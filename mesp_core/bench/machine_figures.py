"""This machine's figures, measured: about two seconds in a child process with BLAS preloaded, as a worker has it.

Everything is done by turns, again and again: a machine that gets slower meanwhile is slower at all of it, and memory is as
mixed as in a step. `ensure` is the parent side; `python -m mesp_core.bench.machine_figures` is the child that computes.
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
from mesp_core.machine.model import NARROWER, MachineModel
from mesp_core.machine.recorded import nearest
from mesp_core.processes.child_side import Request, Say, serve
from mesp_core.processes.parent_side import ask
from mesp_core.processes.start import blas_for_child

RANK, HEADS, HEAD_DIM = 8, 4, 64  # of the matrices that are multiplied
BLOCKS = 3  # row blocks of the frozen matrix that is dequantised and multiplied
# Results of one evaluation on a GPU, so that a wait does not count with each. On the CPU the memory of several would be new
# each time, and its pages cost more than what is measured.
AT_ONCE = 8
MEASURE_S, FEWEST = 1.4, 3  # all turns together, and how many of them at least
LONGEST_S = 0.04  # one quantised product: on a CPU it takes long, and a part of the matrix is enough
FILE_BYTES, READ_BYTES = 2 * 1024 * 1024, 512 * 1024
CHAIN = 40  # kernels in a chain

Work = Callable[[], object]


def ensure(shapes: Shapes, say: Callable[[str], None]) -> MachineModel:
    """This machine's figures: from the cache, else measured now and kept there.

    Where that fails, the recorded figures of the machine nearest to this one. `say` hears in a sentence what takes time and
    what fails.
    """
    if (known := figures.cached(shapes)) is not None:
        return known
    say("Measuring how fast this machine is: about two seconds, once for models of this shape.")
    try:
        return figures.keep(shapes, _ask(shapes))
    except (MespError, TypeError, ValueError) as error:
        recorded = nearest(shapes.dtype)
        say(f"How fast this machine is, is taken from recorded figures ({recorded.name}): {error}")
        return recorded


def measured_now(shapes: Shapes) -> MachineModel:
    """This machine's figures of this moment. Raises MespError if that fails."""
    return figures.model(_ask(shapes))


def _ask(shapes: Shapes) -> dict[str, Any]:
    return ask("mesp_core.bench.machine_figures", asdict(shapes), "it cannot be measured", blas=blas_for_child()[0])


def measure(shapes: Shapes) -> dict[str, Any]:
    """The fields of a MachineModel that are measured, by name. Runs MLX in this process."""
    import mlx.core as mx

    from mesp_core.device.in_use import on_gpu
    from mesp_core.ops import exponential, frozen_matmul, pieces
    from mesp_core.ops.frozen_matmul import FrozenLinear

    mx.set_cache_limit(0)
    dtype = getattr(mx, shapes.dtype)
    times = AT_ONCE if on_gpu() else 1
    tokens, hidden = shapes.tokens, shapes.hidden
    features = pieces.dequantized_rows(hidden)
    bits, group = shapes.bits or 4, shapes.group_size or 64

    def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        array = (0.1 * mx.random.normal(shape)).astype(dtype)
        mx.eval(array)
        return array

    x, w, g = normal(tokens, hidden), normal(features, hidden), normal(tokens, features)
    narrow, narrow_g = w[: features // NARROWER], g[:, : features // NARROWER]
    own, other = (normal(tokens, hidden, dtype=dtype) for _ in range(2))
    a, h = normal(hidden, RANK), normal(tokens, RANK)
    own_a, own_h = a.astype(dtype), h.astype(dtype)
    q, k = (normal(1, HEADS, tokens, HEAD_DIM, dtype=dtype) for _ in range(2))
    p = normal(1, HEADS, tokens, tokens)
    stored = mx.quantize(normal(BLOCKS * features, hidden), group, bits)
    mx.eval(narrow, narrow_g, own_a, own_h, stored)
    frozen = FrozenLinear(*stored, bits=bits, group_size=group)
    copy, scratch = _files(mx)

    def evaluated(*makes: Callable[[], mx.array]) -> Work:
        return lambda: mx.eval([make() for make in makes for _ in range(times)])

    def thin(x: mx.array, a: mx.array, h: mx.array) -> Work:
        return evaluated(lambda: x @ a, lambda: h @ a.T, lambda: x.T @ h)

    # What is done, and how much of it.
    works: dict[str, tuple[float, Work]] = {
        "wait_s": (CHAIN, lambda: _chain(mx, mx.eval)),
        "submit_s": (CHAIN, lambda: _chain(mx, mx.async_eval)),
        "launch_s": (CHAIN, lambda: _chain(mx, None)),
        "products": (2 * times * tokens * w.size, evaluated(lambda: x @ w.T, lambda: g @ w)),
        "narrow_products": (2 * times * tokens * narrow.size, evaluated(lambda: x @ narrow.T, lambda: narrow_g @ narrow)),
        "own_products": (times * HEADS * tokens**2 * HEAD_DIM, evaluated(lambda: q @ k.swapaxes(-1, -2))),
        "thin_products": (3 * times * tokens * a.size, thin(own, own_a, own_h)),
        "thin_float_products": (3 * times * tokens * a.size, thin(x, a, h)),
        "dequantized": (BLOCKS * w.size, lambda: mx.eval(frozen_matmul.forward(x, frozen))),
        "exponentials": (times * x.size, evaluated(lambda: exponential.exp(x))),
        "softmaxes": (times * p.size, evaluated(lambda: mx.softmax(p, axis=-1))),
        "elements": (times * x.size, evaluated(lambda: own * other)),
        "file_bytes": (FILE_BYTES, copy),
        "disk_bytes": (2 * FILE_BYTES, scratch),
        "quantized_forward": _quantized(mx, shapes, bits, group, transpose=True),
        "quantized_backward": _quantized(mx, shapes, bits, group, transpose=False),
    }
    taken = dict(zip(works, _by_turns([work for _, work in works.values()]), strict=True))
    found = {name: count / taken[name] for name, (count, _) in works.items()}
    # Of one, and without what counts already.
    launch_s, wait_s, submit_s = (1 / found[name] for name in ("launch_s", "wait_s", "submit_s"))
    found |= {"launch_s": launch_s, "wait_s": max(0, wait_s - launch_s), "submit_s": max(0, submit_s - launch_s)}
    # Dequantised and multiplied -> dequantised, of which it is a tenth at least.
    multiplied_s = BLOCKS * w.size * tokens / found["products"]
    found["dequantized"] = BLOCKS * w.size / max(taken["dequantized"] - multiplied_s, 0.1 * taken["dequantized"])
    return found | {"gpu": on_gpu()}


def _quantized(mx: Any, shapes: Shapes, bits: int, group: int, transpose: bool) -> tuple[float, Work]:
    """MLX's own product, of a whole matrix and all tokens or of a part where that takes long: (multiply-adds, the work)."""
    found, dtype, last_s = None, getattr(mx, shapes.dtype), 0.0
    for rows, features in ((16, 128), (64, 256), (shapes.tokens, 512), (shapes.tokens, shapes.intermediate)):
        features = min(features, shapes.intermediate) // group * group
        count = rows * features * shapes.hidden
        if found is not None and last_s * count / found[0] > LONGEST_S:
            break
        weight, *scales = mx.quantize(0.1 * mx.random.normal((features, shapes.hidden)), group, bits)
        scales = [part.astype(dtype) for part in scales]
        x = mx.random.normal((rows, shapes.hidden if transpose else features)).astype(dtype)
        mx.eval(weight, scales, x)

        def multiply(x: Any = x, weight: Any = weight, scales: Any = scales) -> None:
            mx.eval(mx.quantized_matmul(x, weight, *scales, transpose, group, bits))

        multiply()
        started = time.perf_counter()
        multiply()
        last_s, found = time.perf_counter() - started, (count, multiply)
    return found


def _chain(mx: Any, hand_over: Callable[[Any], None] | None) -> None:
    """A kernel after the other, each handed over on its own if `hand_over` is given."""
    x = mx.array(1.0)
    for _ in range(CHAIN):
        x = x + 1
        if hand_over is not None:
            hand_over(x)
    mx.eval(x)


def _files(mx: Any) -> tuple[Work, Work]:
    """Copying a mapped file that was read before into arrays; writing and reading a scratch file."""
    import numpy as np

    from mesp_core.files.cache import cache_dir

    cache_dir().mkdir(parents=True, exist_ok=True)
    content, file = bytes(range(256)) * (FILE_BYTES // 256), tempfile.TemporaryFile(dir=cache_dir())  # noqa: SIM115
    os.pwrite(file.fileno(), content, 0)
    view = np.frombuffer(mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ), np.uint32)
    step = READ_BYTES // view.itemsize

    def copy() -> None:
        for start in range(0, len(view), step):
            mx.eval(mx.array(view[start : start + step]))

    def scratch() -> None:
        os.pwrite(file.fileno(), content, 0)
        os.pread(file.fileno(), FILE_BYTES, 0)

    return copy, scratch


def _by_turns(works: list[Work]) -> list[float]:
    """The median of the seconds that each takes, after a first turn."""
    taken: list[list[float]] = [[] for _ in works]
    started = time.perf_counter()
    while len(taken[0]) < FEWEST + 1 or time.perf_counter() - started < MEASURE_S:
        for work, own in zip(works, taken, strict=True):
            before = time.perf_counter()
            work()
            own.append(time.perf_counter() - before)
    return [statistics.median(own[1:]) for own in taken]


def _work(request: Request, say: Say) -> None:
    say(measure(Shapes(**request)))


if __name__ == "__main__":
    serve(_work)
