"""One array that is made part by part."""

import mlx.core as mx

from mesp_core.device.evaluation import joined
from mesp_core.device.in_use import on_gpu

Place = slice | tuple[slice, ...]


class Gathered:
    """An array of a shape and dtype, 0 where nothing is put. The parts come in order along `axis`.

    On the CPU each part is written into its place, so that whole and part are all there is. A GPU may hold the whole a
    little longer than the piece that wrote into it, and the next writing would be a copy. So there the parts are joined
    when all are made: for a moment it is there twice, but no part is ever copied again and again.
    """

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, axis: int = 0) -> None:
        self._shape, self._dtype, self._axis = shape, dtype, axis
        self._whole: mx.array | None = None
        self._parts: list[mx.array] = []

    def put(self, place: Place, part: mx.array) -> mx.array:
        """Put a part (of the array's dtype) in its place; returns what to evaluate to be rid of what made the part."""
        if on_gpu():
            self._parts.append(part)
            return part
        if part.shape == self._shape:
            self._whole = part
        else:
            if self._whole is None:
                self._whole = mx.zeros(self._shape, self._dtype)
            self._whole[place] = part
        return self._whole

    def whole(self) -> mx.array:
        """All of it; nothing is left here."""
        if self._parts:
            return joined(self._parts, self._axis)
        whole, self._whole = self._whole, None
        return mx.zeros(self._shape, self._dtype) if whole is None else whole
