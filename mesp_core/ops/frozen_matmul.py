"""The frozen matmul: y = x·W₀ᵀ + b and its input gradient ∂x = g·W₀, for quantised and plain W₀.

Two kernels compute the same products. `quantized` is MLX's own (fast on Metal, no temporary). `dequantize` turns row
blocks of W₀ into float32 and multiplies those: 10 to 20 times faster than `quantized` on the CPU backend, the fallback
wherever `quantized` fails the self-check (ops/self_check.py), and never more than BLOCK_ELEMENTS (pieces.py) of W₀
in float at once.

W₀ may lie in a file (`Stored`). Then it is read row block by row block, each one gone before the next is read.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from mesp_core.device.evaluation import piece
from mesp_core.device.gathered import Gathered
from mesp_core.ops import pieces


class Stored(Protocol):
    """A matrix that lies in a file: its rows become an array when they are asked for."""

    dtype: mx.Dtype
    shape: tuple[int, ...]
    nbytes: int

    def __getitem__(self, part: slice | tuple[slice, slice] | mx.array) -> mx.array:
        """A copy of that part, read now."""


Matrix = mx.array | Stored


@dataclass(frozen=True)
class FrozenLinear:
    """W₀ (out_features × in_features), maybe quantised, with its bias b; and the kernel that multiplies by it.

    weight: packed uint32 (out × in·bits/32) with scales and biases (out × in/group_size), or plain floats (out × in).
    """

    weight: Matrix
    scales: Matrix | None = None
    biases: Matrix | None = None
    bias: mx.array | None = None
    bits: int | None = None
    group_size: int | None = None
    kernel: str = "dequantize"
    traced: bool = False  # used inside a function that MLX differentiates, where nothing can be evaluated early

    @property
    def out_features(self) -> int:
        """Rows of W₀."""
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of W₀."""
        columns = self.weight.shape[1]
        return columns if self.bits is None else columns * 32 // self.bits

    @property
    def stored(self) -> bool:
        """Whether W₀ is read from the file when it is needed."""
        return not isinstance(self.weight, mx.array)

    @property
    def nbytes(self) -> int:
        """Bytes of W₀ and b: held, or still in the file."""
        return sum(a.nbytes for a in (self.weight, self.scales, self.biases, self.bias) if a is not None)


def forward(x: mx.array, linear: FrozenLinear) -> mx.array:
    """x (T × in) -> y = x·W₀ᵀ + b (T × out), in x's dtype."""
    y = _differentiable(x, linear) if linear.traced else _product(x, linear)
    return y if linear.bias is None else y + linear.bias.astype(y.dtype)


def backward(g: mx.array, linear: FrozenLinear) -> mx.array:
    """g = ∂L/∂y (T × out) -> ∂x = g·W₀ (T × in), in g's dtype."""
    fast = _multiplies_as_stored(g, linear)
    blocks = _blocks(linear, fast)
    if len(blocks) == 1:
        if fast:
            return _quantized(g, linear, slice(None), transpose=False)
        return (g.astype(mx.float32) @ dequantized_rows(linear, slice(None))).astype(g.dtype)
    dx = mx.zeros((*g.shape[:-1], linear.in_features), mx.float32)
    for start, stop in blocks:
        part, rows = g[..., start:stop], slice(start, stop)
        if fast:
            dx = dx + _quantized(part, linear, rows, transpose=False).astype(mx.float32)
        else:
            dx = mx.addmm(dx, part.astype(mx.float32), dequantized_rows(linear, rows))
        _settle(dx, linear)
    return dx.astype(g.dtype)


def add_forward(y: mx.array, x: mx.array, linear: FrozenLinear) -> mx.array:
    """y (T × out) float32 + x·W₀ᵀ, without b; on the CPU in y's own buffer if W₀ is float32 and nobody else holds y."""
    if linear.bits is None and linear.weight.dtype == mx.float32:
        return mx.addmm(y, x.astype(mx.float32), linear.weight.T)
    return y + forward(x, replace(linear, bias=None)).astype(mx.float32)


def add_backward(dx: mx.array, g: mx.array, linear: FrozenLinear) -> mx.array:
    """dx (T × in) float32 + g·W₀; on the CPU in dx's own buffer if W₀ is float32 and nobody else holds dx."""
    if linear.bits is None and linear.weight.dtype == mx.float32:
        return mx.addmm(dx, g.astype(mx.float32), linear.weight)
    return dx + backward(g, linear).astype(mx.float32)


def outputs(linear: FrozenLinear, start: int, stop: int) -> FrozenLinear:
    """The part of a layer that makes its outputs start…stop-1: rows of W₀, and of b."""
    return _part(linear, slice(start, stop), slice(None), linear.bias if linear.bias is None else linear.bias[start:stop])


def inputs(linear: FrozenLinear, start: int, stop: int) -> FrozenLinear:
    """The part of a layer that reads its inputs start…stop-1: columns of W₀, without b, which belongs to the whole.

    Where W₀ is quantised, start and stop must lie between groups (and then lie between words, whatever the bits).
    """
    if linear.bits is not None and (start % linear.group_size or stop % linear.group_size):
        raise ValueError(f"inputs {start}…{stop} cut a group of {linear.group_size}")
    return _part(linear, slice(None), slice(start, stop), None)


def _part(linear: FrozenLinear, rows: slice, columns: slice, bias: mx.array | None) -> FrozenLinear:
    """In float32 where it would be dequantised for every product anyway: a part is used for several."""
    if linear.bits is None:
        return replace(linear, weight=linear.weight[rows, columns], bias=bias)
    words = slice(*(None if at is None else at * linear.bits // 32 for at in (columns.start, columns.stop)))
    groups = slice(*(None if at is None else at // linear.group_size for at in (columns.start, columns.stop)))
    part = replace(
        linear,
        weight=linear.weight[rows, words],
        scales=linear.scales[rows, groups],
        biases=linear.biases[rows, groups],
        bias=bias,
    )
    if linear.kernel == "quantized":
        return part
    weight = dequantized_rows(part, slice(None))
    return replace(part, weight=weight, scales=None, biases=None, bits=None, group_size=None)


def _product(x: mx.array, linear: FrozenLinear) -> mx.array:
    fast = _multiplies_as_stored(x, linear)
    blocks = _blocks(linear, fast)
    operand = x if fast else x.astype(mx.float32)

    def outputs_of(rows: slice) -> mx.array:
        if fast:
            return _quantized(operand, linear, rows, transpose=True)
        return (operand @ dequantized_rows(linear, rows).T).astype(x.dtype)

    if len(blocks) == 1:
        return outputs_of(slice(None))
    if linear.traced:  # in a whole graph nothing can be written in place
        return mx.concatenate([outputs_of(slice(*block)) for block in blocks], axis=-1)
    y = Gathered((*x.shape[:-1], linear.out_features), x.dtype, axis=-1)
    for start, stop in blocks:
        piece(y.put((..., slice(start, stop)), outputs_of(slice(start, stop))))
    return y.whole()


def _differentiable(x: mx.array, linear: FrozenLinear) -> mx.array:
    """The same product with its own vjp: MLX's would keep a float copy of W₀ alive from the forward to the backward."""

    @mx.custom_function
    def product(x: mx.array) -> mx.array:
        return _product(x, linear)

    @product.vjp
    def product_vjp(primals: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return backward(cotangent, linear)

    return product(x)


def _settle(result: mx.array, linear: FrozenLinear) -> None:
    """Evaluate what one row block gave, so that the block is gone before the next exists; in a whole graph all would be."""
    if not linear.traced:
        piece(result)


def dequantized_rows(linear: FrozenLinear, rows: slice | mx.array) -> mx.array:
    """Some rows of W₀ in float32.

    mx.dequantize computes in the dtype of the scales, so these are cast first: float16 scales otherwise cost 5.6e-4.
    """
    if linear.bits is None:
        return linear.weight[rows].astype(mx.float32)
    scales, biases = (a[rows].astype(mx.float32) for a in (linear.scales, linear.biases))
    return mx.dequantize(linear.weight[rows], scales, biases, group_size=linear.group_size, bits=linear.bits)


def row_blocks(linear: FrozenLinear) -> list[tuple[int, int]]:
    """The row ranges that `dequantize` works through."""
    return pieces.ranges(linear.out_features, pieces.dequantized_rows(linear.in_features))


def stored_blocks(linear: FrozenLinear) -> list[tuple[int, int]]:
    """The row ranges in which `quantized` reads and multiplies a layer that lies in a file.

    The self-check has to try `outputs(linear, start, stop)` for each size among these, see engine/used_shapes.py.
    """
    row = sum(a.nbytes for a in (linear.weight, linear.scales, linear.biases) if a is not None) // linear.out_features
    return pieces.ranges(linear.out_features, pieces.stored_rows(row))


def _blocks(linear: FrozenLinear, fast: bool) -> list[tuple[int, int]]:
    if not fast:
        return row_blocks(linear)
    return stored_blocks(linear) if linear.stored else [(0, linear.out_features)]


def _multiplies_as_stored(x: mx.array, linear: FrozenLinear) -> bool:
    """Whether MLX can multiply without a float copy of W₀: a plain W₀ of another dtype than x would be cast whole."""
    return linear.kernel == "quantized" and (linear.bits is not None or linear.weight.dtype == x.dtype)


def _quantized(x: mx.array, linear: FrozenLinear, rows: slice, transpose: bool) -> mx.array:
    """x·W₀[rows]ᵀ (transpose) or x·W₀[rows], by MLX's own product."""
    weight = linear.weight[rows]
    if linear.bits is None:
        return x @ (weight.T if transpose else weight)
    # Scales of another dtype would promote the product: bfloat16 x with float16 scales gives float32.
    scales, biases = linear.scales[rows].astype(x.dtype), linear.biases[rows].astype(x.dtype)
    return mx.quantized_matmul(
        x, weight, scales, biases, transpose=transpose, group_size=linear.group_size, bits=linear.bits
    )
