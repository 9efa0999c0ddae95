"""Causal attention with grouped heads: O = softmax(c·Q·Kᵀ + mask)·V, query heads sharing key/value heads.

Samples are padded on the right, so the causal mask already hides padding from every real token.
`forward` and `backward` hold whole rows of probabilities of some heads; `tiled_forward` and `tiled_backward` one tile.

In here b samples and k key/value heads are worked on at a time, each with the rows of its G query heads as one matrix: one
of either on the CPU, all on a GPU, where a kernel costs the same for many.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mesp_core.device.evaluation import piece, settle
from mesp_core.device.fused import ATTENTION, one_kernel, own_kernel, trusted
from mesp_core.device.gathered import Gathered
from mesp_core.device.in_use import on_gpu
from mesp_core.ops import exponential, pieces

QUERY_TILE = 128  # rows of probabilities that exist at once in `backward`; what the mask hides beyond them is skipped


@dataclass(frozen=True)
class _Share:
    """What is worked on at a time: samples, key/value heads with their query heads, and the tokens that are looked at."""

    samples: slice
    heads: slice
    kv_heads: slice
    length: int

    def queries(self, a: mx.array, rows: slice) -> mx.array:
        """a (B × H × L × D) -> (b × kG × rows × D)."""
        return a[self.samples, self.heads, rows]

    def keys(self, a: mx.array, keys: slice) -> mx.array:
        """a (B × K × L × D) -> (b × k × keys × D) in float32."""
        return a[self.samples, self.kv_heads, keys].astype(mx.float32)

    def stacked(self, a: mx.array) -> mx.array:
        """(b × kG × rows × D) -> (b × k × G·rows × D)."""
        batch, _heads, _rows, dims = a.shape
        return a.reshape(batch, self.kv_heads.stop - self.kv_heads.start, -1, dims)

    def unstacked(self, a: mx.array, rows: slice) -> mx.array:
        """(b × k × G·rows × D) -> (b × rows × kG × D)."""
        return a.reshape(len(a), -1, rows.stop - rows.start, a.shape[-1]).swapaxes(1, 2)


def forward(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """q (B × H × L × D), k, v (B × K × L × D) -> o (B × H × L × D); `scale` is c."""
    if on_gpu() and not trusted(ATTENTION):
        return _plain(q, k, v, scale)
    return _fused(q, k, v, scale)


@own_kernel
def _fused(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")


def _plain(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """The formula, for a device whose fused kernel is wrong."""
    batch, _heads, length, dims = q.shape
    grouped = (scale * q.astype(mx.float32)).reshape(batch, k.shape[1], -1, length, dims)
    k, v = (a.astype(mx.float32)[:, :, None] for a in (k, v))
    s = grouped @ k.swapaxes(-1, -2) + _mask(slice(0, length), slice(0, length), None)
    return (mx.softmax(s, axis=-1) @ v).reshape(q.shape).astype(q.dtype)


def backward(g: mx.array, q: mx.array, k: mx.array, v: mx.array, scale: float) -> tuple[mx.array, mx.array, mx.array]:
    """g = ∂L/∂O -> ∂Q, ∂K, ∂V, the probabilities recomputed (Dao et al., arXiv 2205.14135, section 3.1).

    With ∂P = g·Vᵀ:  ∂V = Pᵀ·g   ∂S = P ∘ (∂P − rowsum(P ∘ ∂P))   ∂Q = c·∂S·K   ∂K = c·∂Sᵀ·Q.
    One tile of queries at a time. It sees whole rows of P, so the row sum needs no O, and is closer to the exact one than
    rowsum(g ∘ O).
    """
    of_heads: list[list[mx.array]] = [[], [], []]
    for share in _shares(q, k, None, one_sample=False):
        length = share.length
        kh, vh = (share.keys(a, slice(0, length)) for a in (k, v))
        dk, dv = mx.zeros_like(kh), mx.zeros_like(vh)
        tiles = []
        for start, stop in pieces.ranges(length, QUERY_TILE):
            rows, keys = slice(start, stop), slice(0, stop)
            gt, qt = (share.stacked(_scaled(share.queries(a, rows), factor)) for a, factor in ((g, None), (q, scale)))
            kt, vt = kh[:, :, keys], vh[:, :, keys]
            s = _masked(qt @ kt.swapaxes(-1, -2), _mask(rows, keys, None))
            p, s = mx.softmax(s, axis=-1), None
            pdp = p * (gt @ vt.swapaxes(-1, -2))
            beyond = [(0, 0), (0, 0), (0, length - stop), (0, 0)]
            dv = dv + mx.pad(p.swapaxes(-1, -2) @ gt, beyond)
            ds = _minus_share(pdp, p, pdp.sum(axis=-1, keepdims=True))
            tiles.append(share.unstacked(_cast_scaled(ds @ kt, scale, q), rows))
            dk = dk + mx.pad(ds.swapaxes(-1, -2) @ qt, beyond)
            p = pdp = ds = None
            # Now, so that one tile's probabilities are gone before the next one's exist.
            piece(tiles[-1], dk, dv)
        of_heads[0].append(mx.concatenate(tiles, axis=1).swapaxes(1, 2))
        of_heads[1].append(dk.astype(k.dtype))
        of_heads[2].append(dv.astype(v.dtype))
    return tuple(parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1) for parts in of_heads)


def tiled_forward(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    lengths: Sequence[int] | None = None,
    window: int | None = None,
    tile_elements: int = pieces.GPU_TILE,
) -> tuple[mx.array, mx.array]:
    """q (B × H × L × D), k, v (B × K × L × D) -> o (B × H × L × D) in q's dtype, and lse (B × H × L), float32, evaluated.

    FlashAttention-2's forward (Dao, arXiv 2307.08691, section 3.1): tiles of queries times tiles of keys, the softmax's
    running maximum and sum rescaling what was summed so far; lse = log Σ exp(scores of a row). `lengths`: the tokens of
    each sample, padded on the right; rows beyond are 0 and never read (a GPU computes them). `window`: a query sees that
    many keys, itself the last. Tiles that no query sees are skipped. Sums are float32. Beside inputs and outputs one tile
    exists, on a GPU of about `tile_elements` scores. o is a view of B × L × H × D in memory, so that joining the heads
    copies nothing.
    """
    settle(q, k, v)
    tile = _Tile.of(q, k, tile_elements)
    o, lse = _gathered(q.shape, q.dtype), _gathered((*q.shape[:3], 1), mx.float32)
    for share in _shares(q, k, lengths):
        for rows in tile.queries(share.length):
            qt = share.stacked(_scaled(share.queries(q, rows), scale))
            largest = total = mean = None
            for keys in tile.keys(rows, window):
                kt, vt = (share.keys(a, keys) for a in (k, v))
                s = _masked(qt @ kt.swapaxes(-1, -2), _mask(rows, keys, window))
                before, largest = largest, s.max(axis=-1, keepdims=True)
                if before is not None:
                    largest = mx.maximum(largest, before)
                settle(s, largest)
                p, s = _exp_less(s, largest), None
                part = p.sum(axis=-1, keepdims=True)
                if before is None:
                    total, mean = part, p @ vt
                else:
                    total, mean = _shrunk(total, part, mean, before, largest)
                    mean = mx.addmm(mean, p, vt)
                p = part = kt = vt = before = None
                # Now, so that one tile's probabilities are gone before the next one's exist.
                piece(largest, total, mean)
            mean, largest = _finished(mean, total, largest, q)
            place = share.samples, rows, share.heads
            made = o.put(place, share.unstacked(mean, rows)), lse.put(place, share.unstacked(largest, rows))
            mean = largest = total = qt = None
            piece(made)
            made = None
    return o.whole().swapaxes(1, 2), lse.whole().swapaxes(1, 2)[..., 0]


def tiled_backward(
    taken: list[mx.array],
    scale: float,
    lengths: Sequence[int] | None = None,
    window: int | None = None,
    tile_elements: int = pieces.GPU_TILE,
) -> tuple[mx.array, mx.array, mx.array]:
    """[g = ∂L/∂o, q, k, v, o, lse], emptied: what `tiled_forward` took and gave -> ∂Q, ∂K, ∂V in their dtypes, evaluated.

    FlashAttention-2's backward (section 3.2), query tiles outside: with P = exp(scores − lse) and Δ = rowsum(g ∘ o),
    ∂V = Pᵀ·g   ∂S = P ∘ (g·Vᵀ − Δ)   ∂Q = c·∂S·K   ∂K = c·∂Sᵀ·Q. Rows beyond `lengths` are 0. Beside inputs and outputs
    one tile exists, and ∂K and ∂V of what is worked on in float32. All three are views of B × L × heads × D in memory.
    """
    settle(taken)
    g, q, k, v, o, lse = taken
    taken.clear()
    tile = _Tile.of(q, k, tile_elements)
    dq, dk, dv = (_gathered(a.shape, a.dtype) for a in (q, k, v))
    for share in _shares(q, k, lengths):
        dk_tiles, dv_tiles = _Sums(share, tile), _Sums(share, tile)
        for rows in tile.queries(share.length):
            gt, qt = (share.stacked(_scaled(share.queries(a, rows), factor)) for a, factor in ((g, None), (q, scale)))
            delta = _product(gt, share.stacked(share.queries(o, rows))).sum(axis=-1, keepdims=True)
            norm = lse[share.samples, share.heads, rows].reshape(*gt.shape[:-1], 1)
            settle(gt, qt, delta)
            dqt = None
            for keys in tile.keys(rows, window):
                kt, vt = (share.keys(a, keys) for a in (k, v))
                p = _probabilities(qt @ kt.swapaxes(-1, -2), norm, _mask(rows, keys, window))
                dvt = dv_tiles.with_product(keys, p.swapaxes(-1, -2), gt)
                settle(p, dvt)
                ds, p = _softmax_backward(p, gt @ vt.swapaxes(-1, -2), delta), None
                dkt = dk_tiles.with_product(keys, ds.swapaxes(-1, -2), qt)
                dqt = ds @ kt if dqt is None else mx.addmm(dqt, ds, kt)
                ds = kt = vt = None
                # Now, so that one tile's probabilities are gone before the next one's exist.
                piece(dkt, dvt, dqt)
            made = dq.put((share.samples, rows, share.heads), share.unstacked(_cast_scaled(dqt, scale, q), rows))
            gt = qt = dqt = delta = norm = dkt = dvt = None
            piece(made)
            made = None
        for gathered, sums, like in ((dk, dk_tiles, k), (dv, dv_tiles, v)):
            for keys, made in sums.taken():
                made = made.swapaxes(1, 2).astype(like.dtype)
                piece(gathered.put((share.samples, keys, share.kv_heads), made))
                made = None
    g = q = k = v = o = lse = None
    return tuple(gathered.whole().swapaxes(1, 2) for gathered in (dq, dk, dv))


def _gathered(shape: tuple[int, ...], dtype: mx.Dtype) -> Gathered:
    """For an array (B × heads × L × D) that is put together tile by tile, as B × L × heads × D."""
    batch, heads, length, dims = shape
    return Gathered((batch, length, heads, dims), dtype, axis=1)


def _shares(q: mx.array, k: mx.array, lengths: Sequence[int] | None, one_sample: bool = True) -> Iterator[_Share]:
    batch, heads, longest, _dims = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if on_gpu():
        yield _Share(slice(0, batch), slice(0, heads), slice(0, kv_heads), longest)
        return
    for sample in range(batch) if one_sample else [None]:
        samples = slice(0, batch) if sample is None else slice(sample, sample + 1)
        for head in range(kv_heads):
            length = longest if lengths is None else int(lengths[sample])
            yield _Share(samples, slice(head * group, (head + 1) * group), slice(head, head + 1), length)


@dataclass(frozen=True)
class _Tile:
    """How large tiles are: `rows` queries of each query head and `at_once` keys, both cut on a fixed grid."""

    rows: int
    at_once: int

    @classmethod
    def of(cls, q: mx.array, k: mx.array, elements: int) -> "_Tile":
        batch, heads, length, _dims = q.shape
        if on_gpu():
            return cls(*pieces.gpu_tile(batch * heads, length, elements))
        rows = pieces.query_tile(heads // k.shape[1])
        return cls(rows, pieces.TILE_KEYS // rows * rows)

    def queries(self, length: int) -> Iterator[slice]:
        for start, stop in pieces.ranges(length, self.rows):
            yield slice(start, stop)

    def keys(self, rows: slice, window: int | None) -> Iterator[slice]:
        """The keys that some query of the tile sees, last tile first: that one holds at least one key of every query."""
        first = 0 if window is None else max(0, rows.start - window + 1)
        for number in reversed(range(first // self.at_once, -(-rows.stop // self.at_once))):
            yield slice(max(first, number * self.at_once), min(rows.stop, (number + 1) * self.at_once))


class _Sums:
    """∂K or ∂V of what is worked on, in float32: a sum for each tile of keys (b × k × keys × D)."""

    def __init__(self, share: _Share, tile: _Tile) -> None:
        self._share, self._tile = share, tile
        self._sums: list[mx.array | None] = [None] * -(-share.length // tile.at_once)

    def with_product(self, keys: slice, left: mx.array, right: mx.array) -> mx.array:
        """Add left (b × k × keys × n) · right (b × k × n × D) to these keys' sum, which is returned."""
        number = keys.start // self._tile.at_once
        first = number * self._tile.at_once
        last = min(first + self._tile.at_once, self._share.length)
        before = self._sums[number]
        if (keys.start, keys.stop) == (first, last):
            found = left @ right if before is None else mx.addmm(before, left, right)
        else:
            part = mx.pad(left @ right, [(0, 0), (0, 0), (keys.start - first, last - keys.stop), (0, 0)])
            found = part if before is None else before + part
        self._sums[number] = found
        return found

    def taken(self) -> Iterator[tuple[slice, mx.array]]:
        """Each tile of keys and its sum, which is let go."""
        for start, stop in pieces.ranges(self._share.length, self._tile.at_once):
            yield slice(start, stop), self._sums.pop(0)


def _mask(rows: slice, keys: slice, window: int | None) -> mx.array | None:
    """What hides a key from a query: −∞ (rows × keys), added to scores; None where every query sees every key."""
    late, early = keys.stop - 1 > rows.start, window is not None and keys.start <= rows.stop - 1 - window
    if not (late or early):
        return None
    query, key = np.arange(rows.start, rows.stop)[:, None], np.arange(keys.start, keys.stop)
    hidden = key > query
    if early:
        hidden |= key <= query - window
    return mx.array(np.where(hidden, np.float32(-np.inf), np.float32(0)))


def _masked(s: mx.array, mask: mx.array | None) -> mx.array:
    """Scores (b × k × G·rows × keys), those that the mask hides −∞."""
    return s if mask is None else (s.reshape(*s.shape[:2], -1, *mask.shape) + mask).reshape(s.shape)


def _probabilities(s: mx.array, norm: mx.array, mask: mx.array | None) -> mx.array:
    """exp(s − lse), masked, as one kernel."""
    if mask is None:
        return _exp_less(s, norm)
    grouped = (*s.shape[:2], -1, *mask.shape)
    return _exp_less(s.reshape(grouped), norm.reshape(*grouped[:-1], 1), mask).reshape(s.shape)


@one_kernel
def _exp_less(s: mx.array, norm: mx.array, mask: mx.array | None = None) -> mx.array:
    return exponential.exp((s if mask is None else s + mask) - norm)


@one_kernel
def _scaled(a: mx.array, scale: float | None) -> mx.array:
    a = a.astype(mx.float32)
    return a if scale is None else scale * a


@one_kernel
def _product(a: mx.array, b: mx.array) -> mx.array:
    return a.astype(mx.float32) * b.astype(mx.float32)


@one_kernel
def _shrunk(
    total: mx.array, part: mx.array, mean: mx.array, before: mx.array, largest: mx.array
) -> tuple[mx.array, mx.array]:
    """The running sum with another part, and the running mean's numerator, to a new largest score."""
    shrink = exponential.exp(before - largest)
    return total * shrink + part, mean * shrink


@one_kernel
def _finished(mean: mx.array, total: mx.array, largest: mx.array, like: mx.array) -> tuple[mx.array, mx.array]:
    """o in the dtype of `like`, and lse."""
    return (mean / total).astype(like.dtype), largest + mx.log(total)


@one_kernel
def _softmax_backward(p: mx.array, dp: mx.array, delta: mx.array) -> mx.array:
    return p * (dp - delta)


@one_kernel
def _minus_share(pdp: mx.array, p: mx.array, total: mx.array) -> mx.array:
    return pdp - p * total


@one_kernel
def _cast_scaled(a: mx.array, scale: float, like: mx.array) -> mx.array:
    return (scale * a).astype(like.dtype)
