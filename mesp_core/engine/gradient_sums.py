"""The adapter gradients of one block while they are gathered: sums in float32 over the parts that the work is cut into."""

from collections.abc import Mapping

import mlx.core as mx

from mesp_core.device.evaluation import piece, settle
from mesp_core.ops.lora_linear import LoRA

Adapters = Mapping[str, LoRA]
Gradients = dict[str, tuple[mx.array, mx.array]]  # projection -> (∂A, ∂B)


class GradientSums:
    """∂A and ∂B by projection, in float32."""

    def __init__(self) -> None:
        self._sums: Gradients = {}

    def add(self, name: str, pair: tuple[mx.array, mx.array] | None) -> None:
        """Add (∂A, ∂B) of some tokens; None, for a projection without an adapter, adds nothing."""
        if pair is None:
            return
        da, db = (part.astype(mx.float32) for part in pair)
        if name in self._sums:
            da, db = self._sums[name][0] + da, self._sums[name][1] + db
        piece(da, db)
        self._sums[name] = da, db

    def take(self, adapters: Adapters) -> Gradients:
        """The sums in the adapters' dtypes, evaluated; nothing of them is left here."""
        taken: Gradients = {}
        while self._sums:
            name, (da, db) = self._sums.popitem()
            pair = da.astype(adapters[name].a.dtype), db.astype(adapters[name].b.dtype)
            settle(pair)
            taken[name] = pair
        return taken
