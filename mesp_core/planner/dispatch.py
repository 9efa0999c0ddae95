"""How often the device is called in a block, forward and backward together: kernels, pieces, drains.

Counted with the engine as it is, with float32 and bfloat16, the quantised kernel and the other, at 64 to 512 tokens: a
constant, and so many for each part of the MLP, tile of attention and row block of a matrix. What mx.dequantize launches is
in the time of an element, which is measured at the usual size of a part, and not among the kernels. The functions stand
alone, so that a count can take their place.
"""

import math
from dataclasses import dataclass, replace

from mesp_core.lifetimes.keep import ACTIVATIONS, ATTENTION, Keep
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.ops import pieces

OPS_A_PIECE = 40  # kernels after which MLX hands a command buffer over on its own (20 to 50, by the chip)
CASTS = 1.1  # what lean converts where activations are in 16 bits
DEQUANTIZE = 25  # kernels of one mx.dequantize on the CPU
WHOLE_ROWS = 128  # queries of mesp's tile in attention, whose keys are all there at once, see ops/attention.py


@dataclass(frozen=True)
class Dispatch:
    """`drains`: blocking evaluations. `pieces`: command buffers, at least one for each of them."""

    kernels: float
    drains: float

    @property
    def pieces(self) -> float:
        """What is handed over at once ends at a drain, or when it is long enough."""
        return max(self.drains, self.kernels / OPS_A_PIECE)

    def __add__(self, other: "Dispatch") -> "Dispatch":
        return Dispatch(self.kernels + other.kernels, self.drains + other.drains)


def autodiff(s: Sizes, checkpointing: bool) -> Dispatch:
    """Everything is one evaluation."""
    return Dispatch(520 if checkpointing else 400, 0)


def mebp(s: Sizes) -> Dispatch:
    """Forward, then one vector-Jacobian product of the block."""
    rows = _row_blocks(s)
    return Dispatch(412 + 6 * rows, 5 + rows)


def mesp(s: Sizes) -> Dispatch:
    """Forward, attention again, backward by parts of the MLP and tiles of attention."""
    rows, parts = _row_blocks(s), _parts(s, pieces.mesp_part_elements(s.hidden))
    tiles = s.model.num_key_value_heads * math.ceil(s.length / WHOLE_ROWS)
    return Dispatch(563 + 35 * parts + 23 * tiles + 4 * rows, 27 + 3 * parts + tiles + 1.25 * rows)


def lean(s: Sizes, keep: Keep, layer: int) -> Dispatch:
    """As mesp, with the forward by parts and tiles, too. What is kept of this block is not made again."""
    parts, tiles, passes = _parts(s, keep.part_elements), _tiles(s), math.ceil(s.tokens / pieces.TOKENS)
    rows = _attention_row_blocks(s) * passes
    attend = Dispatch(96 + 18 * tiles + 2 * rows, 12 + 4 * tiles + rows)
    opening = _smaller_parts(s, keep.part_elements) * passes
    forward = Dispatch(80 + 20 * parts * passes + opening, 8 + 4 * parts * passes)
    less = 5 * sum(name in keep.activations(layer) for name in ACTIVATIONS)
    backward = Dispatch(
        210 + (35 - less) * parts * passes + 42 * tiles + 2 * rows + opening, 35 + 3 * parts * passes + 7 * tiles + rows
    )
    again = Dispatch(0, 0) if keep.keeps(layer, ATTENTION) else attend
    called = attend + forward + backward + again
    return called if s.item == 4 else replace(called, kernels=CASTS * called.kernels)


def loss(s: Sizes) -> Dispatch:
    """Of a whole step: the head by parts of the vocabulary."""
    passes = math.ceil(s.tokens / pieces.TOKENS)
    parts = math.ceil(s.model.vocab_size / pieces.head_rows(s.hidden, s.quantized))
    return Dispatch(passes * (50 + 30 * parts), passes * (5 + 2 * parts))


def _row_blocks(s: Sizes) -> int:
    """Row blocks of all projections, where there are several of one."""
    return sum(_blocks(s, name) for name in PROJECTIONS)


def _attention_row_blocks(s: Sizes) -> int:
    return sum(_blocks(s, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))


def _blocks(s: Sizes, name: str) -> int:
    entry = s.linear(name)
    blocks = math.ceil(entry.out_features / s.block_rows(entry))
    return blocks if blocks > 1 else 0


def _parts(s: Sizes, part_elements: int) -> int:
    return math.ceil(s.model.intermediate_size / s.features(part_elements))


def _smaller_parts(s: Sizes, part_elements: int) -> float:
    """Kernels of mx.dequantize in a pass over the MLP's matrices, beyond those that the time of an element has in it."""
    if s.quantized or s.linear("gate_proj").bits is None:
        return 0
    elements = 3 * s.hidden * s.model.intermediate_size
    return DEQUANTIZE * elements * (1 / (s.features(part_elements) * s.hidden) - 1 / pieces.BLOCK_ELEMENTS)


def _tiles(s: Sizes) -> int:
    """Tiles of queries times tiles of the keys they see, of every sample and key/value head."""
    at_once = pieces.query_tile(s.model.num_attention_heads // s.model.num_key_value_heads)
    of_head = sum(math.ceil(stop / pieces.TILE_KEYS) for _, stop in pieces.ranges(s.length, at_once))
    return s.batch * s.model.num_key_value_heads * of_head
