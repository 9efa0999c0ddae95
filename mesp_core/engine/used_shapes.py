"""In which shapes the engine multiplies by a layer: each of them has to be tried before a fast kernel is trusted."""

from dataclasses import replace

from mesp_core.engine import mlp
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.ops import frozen_matmul, pieces
from mesp_core.ops.frozen_matmul import FrozenLinear


def used_shapes(name: str, linear: FrozenLinear) -> list[FrozenLinear]:
    """A layer in every shape that the quantised kernel meets it in: whole, in row blocks where it is read from the file,
    an MLP's also in parts, the head in parts only."""
    cut, features, part = frozen_matmul.outputs, linear.out_features, linear.out_features
    if name == "down_proj":
        cut, features, part = frozen_matmul.inputs, linear.in_features, pieces.MLP_FEATURES
    elif name in mlp.PROJECTIONS:
        part = pieces.MLP_FEATURES
    elif name not in PROJECTIONS:
        part = pieces.HEAD_ROWS
    shapes = {(cut, size) for size in (min(part, features), features % part) if size}
    if name in PROJECTIONS:
        whole = linear.out_features
        blocks = {stop - start for start, stop in frozen_matmul.stored_blocks(linear)}
        shapes |= {(frozen_matmul.outputs, size) for size in (whole, *blocks)}
    linear = replace(linear, kernel="quantized")
    return [cut(linear, 0, size) for cut, size in sorted(shapes, key=lambda shape: (shape[0].__name__, shape[1]))]
