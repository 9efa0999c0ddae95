"""How long a step of lean takes, in relative terms: what is saved by what is kept.

Measured on a two-core CPU, float32, blocks of qwen2.5-0.5b at 256 tokens: re-running attention takes 18 ms, gate or up
12 ms, σ(gate) 5 ms, the block's forward and backward 164 + 251, 128 + 211 and 125 + 206 ms as the MLP's parts grow. From
these follow a product's and a dequantised element's time below, with which attention's 18 ms come out again. Only ratios
are used.
"""

import math

from mesp_core.lifetimes.keep import ATTENTION, GATE, LARGE_PART, SIGMA, SMALL_PART, UP, Keep
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.ops.pieces import BLOCK_ELEMENTS, TOKENS

MULTIPLY_ADD = 10.8e-12  # seconds each: 12 ms for gate
ELEMENT = 6.7e-9  # of a matrix dequantised: what is left of a block's 331 ms after products and exponentials
EXPONENTIAL = 4.0e-9  # 5 ms for σ(gate)
DISK = 1e9  # bytes a second, either way
# The MLP's time by the size of its parts, to that with the largest.
PARTS = {SMALL_PART: 1.26, BLOCK_ELEMENTS: 1.02, LARGE_PART: 1.0}


class Cost:
    """Seconds by that model of everything lean does in a step."""

    def __init__(self, sizes: Sizes) -> None:
        s = self._sizes = sizes
        self._passes = math.ceil(s.tokens / TOKENS)  # each dequantises all weights again
        hidden, queries, keys, up = s.hidden, s.queries, s.keys, s.model.intermediate_size
        scores = s.batch * s.model.num_attention_heads * s.length * (s.length + 1) / 2
        attention, mlp = 2 * hidden * (queries + keys), 3 * hidden * up
        tiles = scores * (2 * s.model.head_dim * MULTIPLY_ADD + EXPONENTIAL)
        attend = self._products(attention) + self._dequantised(attention) + tiles
        self.saved = {
            ATTENTION: attend,
            GATE: self._products(hidden * up),
            UP: self._products(hidden * up),
            SIGMA: EXPONENTIAL * s.tokens * up,
        }
        # Forward, and backward: attention again, its gradients (five products a tile where the forward has two), MLP again.
        self._attention = 2 * attend + self._products(attention) + self._dequantised(attention) + 2.5 * tiles
        self._mlp = 2 * (self._products(mlp) + self._dequantised(mlp) + self.saved[SIGMA]) + 2 * self.saved[GATE]
        head = hidden * s.model.vocab_size
        self._loss = 2 * self._products(head) + self._dequantised(head) + EXPONENTIAL * s.tokens * s.model.vocab_size

    def seconds(self, keep: Keep, inputs: str) -> float:
        """Of one step."""
        block = self._attention + PARTS[keep.part_elements] * self._mlp
        saved = sum(seconds * getattr(keep, what) for what, seconds in self.saved.items())
        disk = 2 * keep.layers * self._sizes.block_input / DISK if inputs == "disk" else 0
        return keep.layers * block - saved + self._loss + disk

    def _products(self, elements: float) -> float:
        return MULTIPLY_ADD * self._sizes.tokens * elements

    def _dequantised(self, elements: float) -> float:
        return 0 if self._sizes.quantized else ELEMENT * self._passes * elements
