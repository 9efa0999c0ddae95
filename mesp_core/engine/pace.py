"""How a block is gone over: all tokens in one graph, or some at a time, every piece evaluated before the next is made.

The two paces do the same products in the same order. `WHOLE` is what MeBP and MeSP do, and all that a function which MLX
differentiates can do, because nothing in it can be evaluated early. `ROWS` is lean's. Adapters in 16 bits become float32 in
`ROWS` alone: there the copy is of one projection and gone at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from mesp_core.device.evaluation import settle
from mesp_core.engine import norm
from mesp_core.engine.gradient_sums import Adapters, GradientSums
from mesp_core.engine.rowwise import rowwise
from mesp_core.ops import lora_linear, rms_norm
from mesp_core.ops.lora_linear import LoRA
from mesp_core.ops.pieces import GPU_TILE
from mesp_core.weights.weights import Block

H = dict[str, mx.array]  # h = xA of projections, by their names


@dataclass(frozen=True)
class Pace:
    """`by_rows`: some rows of (tokens × …) arrays at a time. `tile_elements`: scores of attention at once, on a GPU."""

    by_rows: bool
    tile_elements: int = GPU_TILE

    def flat(self, x: mx.array) -> mx.array:
        """(B × L × C) -> (T × C) where rows are cut. `WHOLE` makes no view: MLX writes into no memory that a view shares."""
        return x.reshape(-1, x.shape[-1]) if self.by_rows else x

    def rowwise(self, tokens: int, work: Callable[[slice], tuple[mx.array, ...]]) -> tuple[mx.array, ...]:
        """`work(rows)` -> arrays of these rows, for all rows; evaluated where it goes by rows."""
        return rowwise(tokens, work) if self.by_rows else work(slice(None))

    def settle(self, *arrays: mx.array) -> None:
        """Evaluate now what would otherwise be made beside what it goes into."""
        if self.by_rows:
            settle(*arrays)

    def norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        """x (T × C) -> n (T × C)."""
        n = rms_norm.forward(x, weight, eps)
        self.settle(n)
        return n

    def norm_backward(self, dn: mx.array, x: mx.array, weight: mx.array, eps: float, beside: mx.array) -> mx.array:
        """dn = ∂L/∂n, x (T × C) -> ∂L/∂x through the norm, plus `beside`, what reaches x past it."""
        if self.by_rows:
            return norm.backward(dn, x, weight, eps, beside)
        return beside + rms_norm.backward(dn, x, weight, eps)

    def linear(self, x: mx.array, name: str, block: Block, adapters: Adapters, keep: H | None = None) -> mx.array:
        """x (T × in) -> y (T × out) of a projection with its adapter, whose h goes into `keep` if that is given."""
        lora, h = self._lora(name, adapters), None
        if keep is not None and lora is not None:
            h = keep[name] = lora_linear.low_rank(x, lora)
        y = lora_linear.forward(x, block.linears[name], lora, h)
        self.settle(y)
        return y

    def linear_backward(
        self,
        g: mx.array,
        x: mx.array,
        name: str,
        block: Block,
        adapters: Adapters,
        sums: GradientSums,
        h: mx.array | None = None,
    ) -> mx.array:
        """g = ∂L/∂y (T × out), x (T × in), and h where it was kept -> ∂L/∂x; the adapter's gradients go into `sums`."""
        dx, pair = lora_linear.backward(g, x, block.linears[name], self._lora(name, adapters), h)
        self.settle(dx)
        sums.add(name, pair)
        return dx

    def _lora(self, name: str, adapters: Adapters) -> LoRA | None:
        lora = adapters.get(name)
        return lora_linear.in_float32(lora) if self.by_rows else lora


WHOLE, ROWS = Pace(by_rows=False), Pace(by_rows=True)
