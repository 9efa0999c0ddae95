"""A block's MLP, y = down(silu(gate(n)) ∘ up(n)), as the sum it is over parts of its intermediate features.

y = Σ_R down_R(silu(gate_R(n)) ∘ up_R(n)) over ranges R of the M features. So it runs, and goes backward, range by range: no
(tokens × M) array ever exists unless it is asked to be kept, and the backward dequantises a range's weights once for re-run
and gradient. Everything small (tokens × rank) is summed over the ranges and multiplied out once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import mlx.core as mx

from mesp_core.device.evaluation import piece, settle
from mesp_core.engine.gradient_sums import Adapters, GradientSums
from mesp_core.lifetimes.keep import ACTIVATIONS, SIGMA
from mesp_core.ops import exponential, frozen_matmul, gated_mlp, lora_linear, pieces
from mesp_core.ops.frozen_matmul import FrozenLinear
from mesp_core.ops.lora_linear import LoRA

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Activations:
    """What a forward keeps of its MLP for the backward: gate(n), up(n), σ(gate(n)), or some of these; (tokens × M) each.

    It is kept in the parts in which the forward makes it, and the backward, which goes by the same parts, takes it again.
    """

    def __init__(self, names: Sequence[str], dtype: mx.Dtype) -> None:
        self._names, self._dtype = names, dtype
        self._parts: dict[tuple[str, int, int], mx.array] = {}

    def keeps(self, name: str) -> bool:
        """Whether it is to be kept."""
        return name in self._names

    def put(self, rows: slice, features: slice, **values: mx.array | None) -> list[mx.array]:
        """Keep what is to be kept of these values of some tokens and features; returns that."""
        found = {_place(name, rows, features): values[name].astype(self._dtype) for name in self._names}
        self._parts |= found
        return list(found.values())

    def take(self, name: str, rows: slice, features: slice, dtype: mx.Dtype) -> mx.array | None:
        """What was put, which is not kept any longer; None if it never was."""
        kept = self._parts.pop(_place(name, rows, features), None)
        return None if kept is None else kept.astype(dtype)


def _place(name: str, rows: slice, features: slice) -> tuple[str, int, int]:
    return name, rows.start or 0, features.start


NOTHING_KEPT, ALL_ROWS = Activations((), mx.float32), slice(None)


def whole(n: mx.array, linears: Mapping[str, FrozenLinear], adapters: Adapters) -> mx.array:
    """n (T × C) -> y (T × C) in n's dtype, in one graph of which nothing is evaluated: what MLX can differentiate."""
    gate, up = (lora_linear.forward(n, linears[name], adapters.get(name)) for name in ("gate_proj", "up_proj"))
    return lora_linear.forward(gated_mlp.forward(gate, up), linears["down_proj"], adapters.get("down_proj"))


def forward(
    n: mx.array,
    linears: Mapping[str, FrozenLinear],
    adapters: Adapters,
    part_elements: int,
    kept: Activations = NOTHING_KEPT,
    rows: slice = ALL_ROWS,
) -> mx.array:
    """n (T × C), as `operand` gives it -> y (T × C) float32. `kept` gets what it is to keep, as its `rows`.

    Where matrices are dequantised, it is about `part_elements` elements of each at a time.
    """
    gate, up, down = one_kernel(linears)
    lora = {name: adapters.get(name) for name in PROJECTIONS}
    h_gate, h_up = _low_rank(n, lora["gate_proj"]), _low_rank(n, lora["up_proj"])
    h_down = None if lora["down_proj"] is None else mx.zeros((n.shape[0], lora["down_proj"].a.shape[1]))
    y = mx.zeros((n.shape[0], down.out_features))
    for features in feature_ranges(gate, down, part_elements):
        u1 = _made(n, gate, features, h_gate, lora["gate_proj"])
        settle(u1)
        u2 = _made(n, up, features, h_up, lora["up_proj"])
        settle(u2)
        sigma = exponential.sigmoid(u1) if kept.keeps(SIGMA) else None
        a = gated_mlp.forward(u1, u2, sigma)
        keeping = kept.put(rows, features, gate=u1, up=u2, sigma=sigma)
        settle(keeping)
        settle(a)
        u1 = u2 = sigma = None
        y = frozen_matmul.add_forward(y, a, frozen_matmul.inputs(down, features.start, features.stop))
        if h_down is not None:
            h_down = h_down + a @ lora["down_proj"].a[features]
        a = None
        piece(y, h_down, keeping)
    if h_down is not None:
        y = mx.addmm(y, lora["down_proj"].scale * h_down, lora["down_proj"].b)
    return y if down.bias is None else y + down.bias.astype(y.dtype)


def backward(
    g: mx.array,
    n: mx.array,
    linears: Mapping[str, FrozenLinear],
    adapters: Adapters,
    sums: GradientSums,
    part_elements: int,
    kept: Activations = NOTHING_KEPT,
    rows: slice = ALL_ROWS,
) -> mx.array:
    """g = ∂L/∂y, n (T × C), both as `operand` gives them -> ∂L/∂n (T × C) float32; the adapters' gradients go into `sums`.

    What `kept` has as its `rows` is not computed again. With u₁ = gate(n), u₂ = up(n), a = silu(u₁) ∘ u₂ and, for each
    projection, h = x·A and ∂h = s·g·Bᵀ:
    ∂a = g·W_down + ∂h_down·A_downᵀ,  ∂n = ∂u₁·W_gate + ∂h_gate·A_gateᵀ + ∂u₂·W_up + ∂h_up·A_upᵀ.
    """
    gate, up, down = one_kernel(linears)
    # Adapters in 16 bits become float32 a range at a time, because everything they are multiplied with is.
    of_gate, of_up = (_Outer(n, adapters.get(name)) for name in ("gate_proj", "up_proj"))
    of_down = _Inner(g, adapters.get("down_proj"))
    dn = mx.zeros(n.shape)
    for features in feature_ranges(gate, down, part_elements):
        da = frozen_matmul.backward(g, frozen_matmul.inputs(down, features.start, features.stop))
        da = of_down.input_gradient(da, features)
        settle(da)
        w1, w2 = (frozen_matmul.outputs(linear, features.start, features.stop) for linear in (gate, up))
        u1, u2, sigma = (kept.take(name, rows, features, n.dtype) for name in ACTIVATIONS)
        u1 = of_gate.made(n, w1, features) if u1 is None else u1
        u2 = of_up.made(n, w2, features) if u2 is None else u2
        a, du1, du2 = gated_mlp.both(da, u1, u2, sigma)
        of_down.add(a, features)
        da = u1 = u2 = sigma = a = None
        settle(du1, du2, of_down.state)
        of_gate.add(du1, features)
        of_up.add(du2, features)
        dn = frozen_matmul.add_backward(frozen_matmul.add_backward(dn, du1, w1), du2, w2)
        du1 = du2 = w1 = w2 = None
        piece(dn, of_gate.state, of_up.state, of_down.state)
    sums.add("down_proj", of_down.gradients(g))
    for name, outer in (("gate_proj", of_gate), ("up_proj", of_up)):
        dn = outer.input_gradient(dn)
        sums.add(name, outer.gradients(n))
    piece(dn)
    return dn


def operand(x: mx.array, linears: Mapping[str, FrozenLinear]) -> mx.array:
    """x in the dtype it is multiplied in: its own where the kernel takes that, else float32, converted once for all."""
    return x if one_kernel(linears)[0].kernel == "quantized" else x.astype(mx.float32)


def one_kernel(linears: Mapping[str, FrozenLinear]) -> tuple[FrozenLinear, FrozenLinear, FrozenLinear]:
    """gate, up, down. Where one is dequantised all are, in sizes that no kernel was checked for."""
    found = tuple(linears[name] for name in PROJECTIONS)
    if any(linear.kernel != "quantized" for linear in found):
        return tuple(replace(linear, kernel="dequantize") for linear in found)
    return found


def feature_ranges(gate: FrozenLinear, down: FrozenLinear, part_elements: int) -> Iterator[slice]:
    """Ranges of the intermediate features, cut between groups of `down`."""
    features = pieces.mlp_features(gate.in_features, part_elements, down.group_size, gate.kernel == "quantized")
    for start, stop in pieces.ranges(gate.out_features, features):
        yield slice(start, stop)


class _Outer:
    """The adapter of gate or up, whose outputs are the features: a range of them is some columns of B."""

    def __init__(self, n: mx.array, lora: LoRA | None) -> None:
        self._lora = lora
        self._h = _low_rank(n, lora)
        self._dh, self._db = (None, []) if lora is None else (mx.zeros(self._h.shape), [])
        settle(self._h)

    @property
    def state(self) -> list[mx.array]:
        """What has to be evaluated to be rid of a range."""
        return [] if self._lora is None else [self._dh, *self._db[-1:]]

    def made(self, n: mx.array, part: FrozenLinear, features: slice) -> mx.array:
        """The features, from n."""
        return _with_adapter(frozen_matmul.forward(n, part), features, self._h, self._lora)

    def add(self, du: mx.array, features: slice) -> None:
        """Take the gradient of a range of features."""
        if self._lora is not None:
            du = du.astype(mx.float32)
            self._db.append(self._lora.scale * (self._h.T @ du))
            self._dh = lora_linear.plus_scaled(self._dh, du @ self._lora.b[:, features].T, self._lora.scale)

    def input_gradient(self, dn: mx.array) -> mx.array:
        """∂n with the adapter's share, of all ranges."""
        return dn if self._lora is None else mx.addmm(dn, self._dh, self._lora.a.T)

    def gradients(self, n: mx.array) -> tuple[mx.array, mx.array] | None:
        """(∂A, ∂B)."""
        if self._lora is None:
            return None
        return n.astype(mx.float32).T @ self._dh, mx.concatenate(self._db, axis=1)


class _Inner:
    """The adapter of down, whose inputs are the features: a range of them is some rows of A."""

    def __init__(self, g: mx.array, lora: LoRA | None) -> None:
        self._lora = lora
        self._da: list[mx.array] = []
        if lora is not None:
            self._dh = lora.scale * (g.astype(mx.float32) @ lora.b.T)
            self._h = mx.zeros(self._dh.shape)
            settle(self._dh)

    @property
    def state(self) -> list[mx.array]:
        """What has to be evaluated to be rid of a range."""
        return [] if self._lora is None else [self._h, *self._da[-1:]]

    def input_gradient(self, da: mx.array, features: slice) -> mx.array:
        """∂a with the adapter's share."""
        return da if self._lora is None else lora_linear.plus_scaled(da, self._dh @ self._lora.a[features].T)

    def add(self, a: mx.array, features: slice) -> None:
        """Take the activations of a range of features."""
        if self._lora is not None:
            a = a.astype(mx.float32)
            self._da.append(a.T @ self._dh)
            self._h = self._h + a @ self._lora.a[features]

    def gradients(self, g: mx.array) -> tuple[mx.array, mx.array] | None:
        """(∂A, ∂B)."""
        if self._lora is None:
            return None
        return mx.concatenate(self._da, axis=0), self._lora.scale * (self._h.T @ g.astype(mx.float32))


def _low_rank(x: mx.array, lora: LoRA | None) -> mx.array | None:
    return None if lora is None else x.astype(mx.float32) @ lora.a


def _made(n: mx.array, linear: FrozenLinear, features: slice, h: mx.array | None, lora: LoRA | None) -> mx.array:
    part = frozen_matmul.outputs(linear, features.start, features.stop)
    return _with_adapter(frozen_matmul.forward(n, part), features, h, lora)


def _with_adapter(u: mx.array, features: slice, h: mx.array | None, lora: LoRA | None) -> mx.array:
    return u if lora is None else lora_linear.plus_scaled(u, h @ lora.b[:, features], lora.scale)
