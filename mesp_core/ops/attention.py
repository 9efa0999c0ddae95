"""Causal attention with grouped heads: O = softmax(c·Q·Kᵀ + mask)·V, query heads sharing key/value heads.

Samples are padded on the right, so the causal mask already hides padding from every real token.
`forward` and `backward` hold whole rows of probabilities of some heads; `tiled_forward` and `tiled_backward` one tile.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from mesp_core.ops import exponential, pieces

QUERY_TILE = 128  # rows of probabilities that exist at once in the backward; what the mask hides beyond them is skipped


def forward(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """q (B × H × L × D), k, v (B × K × L × D) -> o (B × H × L × D); `scale` is c."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")


def backward(g: mx.array, q: mx.array, k: mx.array, v: mx.array, scale: float) -> tuple[mx.array, mx.array, mx.array]:
    """g = ∂L/∂O -> ∂Q, ∂K, ∂V, the probabilities recomputed (Dao et al., arXiv 2205.14135, section 3.1).

    With ∂P = g·Vᵀ:  ∂V = Pᵀ·g   ∂S = P ∘ (∂P − rowsum(P ∘ ∂P))   ∂Q = c·∂S·K   ∂K = c·∂Sᵀ·Q.
    One key/value head at a time, whose query heads sum into it, and one tile of queries at a time. A tile sees whole
    rows of P, so the row sum needs no O, and is closer to the exact one than rowsum(g ∘ O).
    """
    kv_heads, length = k.shape[1], k.shape[2]
    group = q.shape[1] // kv_heads
    dq, dk, dv = [], [], []
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        kh, vh = (a[:, head : head + 1].astype(mx.float32) for a in (k, v))  # (B × 1 × L × D)
        dk_head, dv_head = mx.zeros_like(kh), mx.zeros_like(vh)
        tiles = []
        for start in range(0, length, QUERY_TILE):
            stop = min(start + QUERY_TILE, length)
            # (B × group × tile × D) for the queries, (B × 1 × stop × D) for the keys they can see
            gt, qt = (a[:, mine, start:stop].astype(mx.float32) for a in (g, q))
            kt, vt = kh[:, :, :stop], vh[:, :, :stop]
            hidden = mx.arange(stop) > mx.arange(start, stop)[:, None]
            qt = scale * qt
            p = mx.softmax(mx.where(hidden, -mx.inf, qt @ kt.swapaxes(-1, -2)), axis=-1)
            dv_head[:, :, :stop] += (p.swapaxes(-1, -2) @ gt).sum(axis=1, keepdims=True)
            pdp = p * (gt @ vt.swapaxes(-1, -2))
            ds = pdp - p * pdp.sum(axis=-1, keepdims=True)
            tiles.append((scale * (ds @ kt)).astype(q.dtype))
            dk_head[:, :, :stop] += (ds.swapaxes(-1, -2) @ qt).sum(axis=1, keepdims=True)
            p = pdp = ds = None
            # Now, so that one tile's probabilities are gone before the next one's exist.
            mx.eval(tiles[-1], dk_head, dv_head)
        dq.append(mx.concatenate(tiles, axis=2))
        dk.append(dk_head.astype(k.dtype))
        dv.append(dv_head.astype(v.dtype))
    return tuple(mx.concatenate(parts, axis=1) for parts in (dq, dk, dv))


def tiled_forward(
    q: mx.array, k: mx.array, v: mx.array, scale: float, lengths: Sequence[int] | None = None, window: int | None = None
) -> tuple[mx.array, mx.array]:
    """q (B × H × L × D), k, v (B × K × L × D) -> o (B × H × L × D) in q's dtype, and lse (B × H × L), float32, evaluated.

    FlashAttention-2's forward (Dao, arXiv 2307.08691, section 3.1): tiles of queries times tiles of keys, the softmax's
    running maximum and sum rescaling what was summed so far; lse = log Σ exp(scores of a row). `lengths`: the tokens of
    each sample, padded on the right; rows beyond are 0 and never read. `window`: a query sees that many keys, itself
    the last. Tiles that no query sees are skipped. Sums are float32. Beside inputs and outputs one tile exists.
    o is a view of B × L × H × D in memory, so that joining the heads copies nothing.
    """
    mx.eval(q, k, v)
    o, lse = _empty(q), mx.zeros(q.shape[:3], mx.float32)
    mx.eval(lse)
    for sample, heads, head, length in _heads(q, k, lengths):
        for rows in _query_tiles(length, heads.stop - heads.start):
            qt = scale * _stacked(q, sample, heads, rows)
            largest = total = mean = None
            for keys in _key_tiles(rows, window):
                kt, vt = (_tile(a, sample, head, keys) for a in (k, v))
                s = _scores(qt, kt, rows, keys, window)
                before, largest = largest, s.max(axis=-1, keepdims=True)
                if before is not None:
                    largest = mx.maximum(largest, before)
                mx.eval(s, largest)
                p, s = exponential.exp(s - largest), None
                part = p.sum(axis=-1, keepdims=True)
                if before is None:
                    total, mean = part, p @ vt
                else:
                    shrink = exponential.exp(before - largest)
                    total, mean = total * shrink + part, mx.addmm(mean * shrink, p, vt)
                p = part = kt = vt = before = shrink = None
                # Now, so that one tile's probabilities are gone before the next one's exist.
                mx.eval(largest, total, mean)
            mean = _unstacked(mean / total, rows).astype(q.dtype)
            largest = (largest + mx.log(total)).reshape(-1, rows.stop - rows.start)
            mx.eval(mean, largest)
            o[sample, rows, heads], lse[sample, heads, rows] = mean, largest
            mx.eval(o, lse)
    return o.swapaxes(1, 2), lse


def tiled_backward(
    g: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    o: mx.array,
    lse: mx.array,
    scale: float,
    lengths: Sequence[int] | None = None,
    window: int | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """g = ∂L/∂o, and what `tiled_forward` took and gave -> ∂Q, ∂K, ∂V in their dtypes, evaluated; 0 beyond `lengths`.

    FlashAttention-2's backward (section 3.2), query tiles outside: with P = exp(scores − lse) and Δ = rowsum(g ∘ o),
    ∂V = Pᵀ·g   ∂S = P ∘ (g·Vᵀ − Δ)   ∂Q = c·∂S·K   ∂K = c·∂Sᵀ·Q. Beside inputs and outputs one tile exists, and ∂K and
    ∂V of one head of one sample in float32. All three are views of B × L × heads × D in memory.
    """
    mx.eval(g, q, k, v, o, lse)
    dq, dk, dv = _empty(q), _empty(k), _empty(v)
    for sample, heads, head, length in _heads(q, k, lengths):
        dk_head, dv_head = (mx.zeros((length, a.shape[-1]), mx.float32) for a in (k, v))
        mx.eval(dk_head, dv_head)
        for rows in _query_tiles(length, heads.stop - heads.start):
            gt, ot, qt = (_stacked(a, sample, heads, rows) for a in (g, o, q))
            delta, qt = (gt * ot).sum(axis=-1, keepdims=True), scale * qt
            ot, norm = None, lse[sample, heads, rows].reshape(-1, 1)
            mx.eval(gt, qt, delta)
            dqt = mx.zeros_like(qt)
            for keys in _key_tiles(rows, window):
                kt, vt = (_tile(a, sample, head, keys) for a in (k, v))
                p = exponential.exp(_scores(qt, kt, rows, keys, window) - norm)
                dvt = mx.addmm(dv_head[keys], p.T, gt)
                mx.eval(p, dvt)
                ds, p = p * (gt @ vt.T - delta), None
                dkt, dqt = mx.addmm(dk_head[keys], ds.T, qt), mx.addmm(dqt, ds, kt)
                ds = kt = vt = None
                mx.eval(dkt, dqt)
                dk_head[keys], dv_head[keys] = dkt, dvt
                dkt = dvt = None
                mx.eval(dk_head, dv_head)
            dqt = _unstacked(scale * dqt, rows).astype(q.dtype)
            mx.eval(dqt)
            dq[sample, rows, heads] = dqt
            gt = qt = dqt = delta = norm = None
            mx.eval(dq)
        dk[sample, :length, head], dv[sample, :length, head] = dk_head.astype(k.dtype), dv_head.astype(v.dtype)
        dk_head = dv_head = None
        mx.eval(dk, dv)
    return dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)


def _empty(a: mx.array) -> mx.array:
    """a (B × H × L × D) -> zeros (B × L × H × D) in its dtype. Evaluated, and held once, slices are written in place."""
    zeros = mx.zeros(a.swapaxes(1, 2).shape, a.dtype)
    mx.eval(zeros)
    return zeros


def _heads(q: mx.array, k: mx.array, lengths: Sequence[int] | None) -> Iterator[tuple[int, slice, int, int]]:
    """(sample, its query heads, their key/value head, tokens): what is worked on at a time."""
    batch, heads, longest, _dims = q.shape
    group = heads // k.shape[1]
    for sample in range(batch):
        for head in range(k.shape[1]):
            yield sample, slice(head * group, (head + 1) * group), head, longest if lengths is None else int(lengths[sample])


def _query_tiles(length: int, group: int) -> Iterator[slice]:
    for start, stop in pieces.ranges(length, pieces.query_tile(group)):
        yield slice(start, stop)


def _key_tiles(rows: slice, window: int | None) -> Iterator[slice]:
    """The keys that some query of the tile sees, last tile first: that one holds at least one key of every query."""
    first = 0 if window is None else max(0, rows.start - window + 1)
    for stop in range(rows.stop, first, -pieces.TILE_KEYS):
        yield slice(max(first, stop - pieces.TILE_KEYS), stop)


def _tile(a: mx.array, sample: int, head: int, keys: slice) -> mx.array:
    """a (B × K × L × D) -> (keys × D) in float32."""
    return a[sample, head, keys].astype(mx.float32)


def _stacked(a: mx.array, sample: int, heads: slice, rows: slice) -> mx.array:
    """a (B × H × L × D) -> (heads·rows × D) in float32: the query heads of a key/value head as rows of one matrix."""
    return a[sample, heads, rows].astype(mx.float32).reshape(-1, a.shape[-1])


def _unstacked(a: mx.array, rows: slice) -> mx.array:
    """(heads·rows × D) -> (rows × heads × D)."""
    return a.reshape(-1, rows.stop - rows.start, a.shape[-1]).swapaxes(0, 1)


def _scores(qt: mx.array, kt: mx.array, rows: slice, keys: slice, window: int | None) -> mx.array:
    """c·Q (heads·rows × D), K (keys × D) -> their product, −∞ where a query does not see a key."""
    s = qt @ kt.T
    late, early = keys.stop - 1 > rows.start, window is not None and keys.start <= rows.stop - 1 - window
    if not (late or early):
        return s
    query, key = mx.arange(rows.start, rows.stop)[:, None], mx.arange(keys.start, keys.stop)
    hidden = key > query
    if early:
        hidden = hidden | (key <= query - window)
    mask = mx.where(hidden, -mx.inf, 0.0)
    return (s.reshape(-1, *mask.shape) + mask).reshape(s.shape)
