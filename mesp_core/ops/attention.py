"""Causal attention with grouped heads: O = softmax(c·Q·Kᵀ + mask)·V, query heads sharing key/value heads.

Samples are padded on the right, so the causal mask already hides padding from every real token.
"""

import mlx.core as mx

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
