"""How many kernels a GPU would launch, counted in the graphs of what is evaluated."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from mesp_core.device import evaluation

# Primitives that only look at memory another way, or stand for others.
FREE = {
    "BroadcastAxes",
    "CustomTransforms",
    "Depends",
    "ExpandDims",
    "Flatten",
    "NumberOfElements",
    "Squeeze",
    "StopGradient",
    "Unflatten",
    "View",
}
# Free as well, but what they leave is not contiguous, so that a reshape of it has to copy.
STRIDED = {"AsStrided", "Broadcast", "Slice", "Split", "Transpose"}


@dataclass
class Kernels:
    """`launched` so far."""

    launched: int = 0


_active: list[Kernels] = []


@contextmanager
def kernels() -> Iterator[Kernels]:
    """Count inside."""
    found = Kernels()

    def count(arrays: tuple) -> None:
        found.launched += nodes(arrays)

    _active.append(found)
    try:
        with evaluation.watched(count):
            yield found
    finally:
        _active.remove(found)


def nodes(arrays: object) -> int:
    """The kernels of the graph behind these arrays that has not been evaluated."""
    flat = [array for _, array in tree_flatten(arrays) if isinstance(array, mx.array)]
    if not flat:
        return 0
    text = io.StringIO()
    mx.export_to_dot(text, *flat)
    names = dict(re.findall(r"{ (\d+) \[label =\"(\w+)", text.getvalue()))
    makers = {array: node for node, array in re.findall(r'^(\d+) -> "(\w+)"', text.getvalue(), re.MULTILINE)}
    inputs: dict[str, list[str | None]] = {node: [] for node in names}
    for array, node in re.findall(r'^"(\w+)" -> (\d+)', text.getvalue(), re.MULTILINE):
        inputs[node].append(makers.get(array))

    def copies(node: str | None) -> bool:
        """Whether a reshape of what this node makes copies it."""
        name = names.get(node)
        return name in STRIDED or (name in FREE | {"Reshape"} and any(copies(before) for before in inputs[node]))

    def launches(node: str) -> int:
        name = names[node]
        if name in FREE | STRIDED:
            return 0
        if name == "Reshape":
            return int(any(copies(before) for before in inputs[node]))
        return len(inputs[node]) if name == "Concatenate" else 1

    return sum(map(launches, names))


def counts_as_one(function: Callable, args: tuple) -> None:
    """Take from what is being counted what a function's graph has too many."""
    if not _active:
        return
    stand_ins = tree_map(lambda a: mx.zeros(a.shape, a.dtype) if isinstance(a, mx.array) else a, list(args))
    mx.eval(stand_ins)
    excess = nodes(function(*stand_ins)) - 1
    for found in _active:
        found.launched -= excess
