"""What there is to do, counted; and what a block's parts come to. How long it takes is in cost.py.

Counts are read off the engine like the sizes in lifetimes/. The passes over whole arrays (`elements`) are rounder: how many
kernels write an array of so many numbers, in each of the places that make such arrays.
"""

import math
from dataclasses import dataclass, fields, replace

from mesp_core.lifetimes.sizes import Sizes
from mesp_core.machine.model import NARROWER
from mesp_core.models.checkpoint import LinearEntry
from mesp_core.ops.pieces import dequantized_rows, query_tile

# A turn of a head's numbers costs as much as so many elementwise kernels: sines, cosines, halves.
ROPE = 6
NORM, NORM_BACKWARD = 7, 12  # kernels that write (tokens × hidden)


@dataclass(frozen=True)
class Work:
    """How much of each kind of work; the kinds are those of machine/model.py, one for one.

    `drains`: blocking evaluations; `pieces`: what is handed over to the device at once; `kernels`: what runs there.
    """

    quantized_forward: float = 0
    quantized_backward: float = 0
    products: float = 0
    narrow_products: float = 0
    own_products: float = 0
    thin_products: float = 0
    thin_float_products: float = 0
    dequantized: float = 0
    exponentials: float = 0
    softmaxes: float = 0
    elements: float = 0
    file_bytes: float = 0
    disk_bytes: float = 0
    kernels: float = 0
    pieces: float = 0
    drains: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> "Work":
        return Work(*(times * getattr(self, f.name) for f in fields(self)))

    __rmul__ = __mul__


def total(*works: Work) -> Work:
    """All of these."""
    return sum(works, Work())


def frozen(s: Sizes, entry: LinearEntry, backward: bool = False, opened: int = 1) -> Work:
    """All tokens through one frozen matrix, which is dequantised `opened` times."""
    elements = entry.out_features * entry.in_features
    multiplied = s.tokens * elements
    if s.quantized and entry.bits is None:
        return Work(own_products=multiplied)
    if s.quantized:
        return Work(quantized_backward=multiplied) if backward else Work(quantized_forward=multiplied)
    return Work(products=multiplied) + opened * dequantised(entry)


def in_parts(s: Sizes, multiplied: Work, part_elements: int) -> Work:
    """Products with parts of a matrix, of so many elements: measured at two widths, and on a line between these."""
    whole, part = dequantized_rows(s.hidden), s.features(part_elements)
    narrow = (whole / part - 1) / (NARROWER - 1) * multiplied.products
    return replace(multiplied, products=multiplied.products - narrow, narrow_products=narrow)


def dequantised(entry: LinearEntry) -> Work:
    """A matrix as float32, once; one that is float32 in its file costs nothing."""
    elements = entry.out_features * entry.in_features
    if entry.bits is not None:
        return Work(dequantized=elements)
    return Work(elements=0 if entry.tensors["weight"].dtype == "F32" else elements)


def adapter(s: Sizes, name: str, times: int, in_float32: bool) -> Work:
    """All tokens through A and through B, `times` over: once forward, twice for the gradients of both and of x."""
    if name not in s.targets:
        return Work()
    multiplied = times * s.tokens * s.rank * sum(s.model.projection_shape(name))
    return Work(thin_float_products=multiplied) if in_float32 else Work(thin_products=multiplied)


def written(s: Sizes, names: tuple[str, ...], outputs: float, inputs: float) -> Work:
    """Elementwise kernels over the outputs and inputs of projections: so many that write an array of that size."""
    shapes = [s.model.projection_shape(name) for name in names]
    return Work(elements=s.tokens * sum(outputs * out + inputs * into for out, into in shapes))


def hidden(s: Sizes, times: float) -> Work:
    """Elementwise kernels over (tokens × hidden)."""
    return Work(elements=times * s.tokens * s.hidden)


def features(s: Sizes, times: float) -> Work:
    """Elementwise kernels over (tokens × intermediate features)."""
    return Work(elements=times * s.tokens * s.model.intermediate_size)


def heads(s: Sizes, times: float) -> Work:
    """Elementwise kernels over q, k and v."""
    return Work(elements=times * s.tokens * (s.queries + 2 * s.keys))


def scores(s: Sizes, tile: int | None = None) -> float:
    """Attention's scores of a block: all of them, or, by tiles of so many queries, without most of what the mask hides."""
    keys = s.length if tile is None else min(s.length, (s.length + min(tile, s.length)) / 2)
    return s.batch * s.model.num_attention_heads * s.length * keys


def lean_scores(s: Sizes) -> float:
    """The scores that lean's tiles hold."""
    return scores(s, query_tile(s.model.num_attention_heads // s.model.num_key_value_heads))


def stored(s: Sizes, names: tuple[str, ...]) -> float:
    """Bytes of these projections in the file."""
    return sum(s.stored(s.linear(name)) for name in names)


def passes(s: Sizes, at_once: int) -> int:
    """How often all weights are gone over where so many tokens are worked on at once."""
    return math.ceil(s.tokens / at_once)
