"""Next-token cross-entropy through a frozen head, without ever holding all logits.

loss = Σ over labelled tokens of (logsumexp(z) − z[label]) with z = n·Wᵀ, and ∂n = softmax(z)·W − W[label], in one pass
over the vocabulary: the running maximum and sum of an online softmax (Milakov & Gimelshein, arXiv 1805.02867) also rescale
the running softmax(z)·W. Exact. Rows without a label (label < 0) are never computed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mesp_core.device.evaluation import piece
from mesp_core.device.gathered import Gathered
from mesp_core.ops import frozen_matmul, pieces
from mesp_core.ops.exponential import exp
from mesp_core.ops.frozen_matmul import FrozenLinear


@dataclass(frozen=True)
class Head:
    """W (vocab × C), served in pieces.

    `part(start, stop)` makes the logits start…stop-1; `rows(ids)` is W[ids] in float32. With a `softcap` c, logits z are
    c·tanh(z/c).
    """

    vocab_size: int
    kernel: str
    part: Callable[[int, int], FrozenLinear]
    rows: Callable[[np.ndarray], mx.array]
    softcap: float | None = None

    @classmethod
    def of(cls, linear: FrozenLinear) -> "Head":
        """The head of a layer, held or in its file."""

        def rows(ids: np.ndarray) -> mx.array:
            return frozen_matmul.dequantized_rows(linear, mx.array(ids))

        return cls(linear.out_features, linear.kernel, lambda a, b: frozen_matmul.outputs(linear, a, b), rows)

    def chunks(self, hidden_size: int) -> list[tuple[int, int]]:
        """Ranges of the vocabulary, one of which is worked on at a time."""
        return pieces.ranges(self.vocab_size, pieces.head_rows(hidden_size, self.kernel == "quantized"))


def forward_backward(n: mx.array, labels: np.ndarray, head: Head, full: bool = False) -> tuple[mx.array, mx.array]:
    """n (B × L × C), labels (B × L, -1: none) -> (Σ loss, a float32 scalar; ∂Σ loss/∂n, in n's dtype).

    `full`: all logits at once instead of a part of the vocabulary at a time.
    """
    flat, labels = n.reshape(-1, n.shape[-1]), labels.reshape(-1)
    labelled = np.flatnonzero(labels >= 0).astype(np.int32)
    if not len(labelled):
        return mx.array(0.0), mx.zeros_like(n)
    whole, at = len(labelled) == len(labels), mx.array(labelled)
    targets = labels[labelled].astype(np.int32)
    compute = _full if full else _online
    loss, dx = compute((flat if whole else flat[at]).astype(mx.float32), targets, head)
    dx = dx.astype(n.dtype)
    if not whole:
        dx = mx.zeros_like(flat).at[at].add(dx)
    return loss, dx.reshape(n.shape)


def logits(n: mx.array, head: Head) -> mx.array:
    """n (… × C) -> z = n·Wᵀ (… × vocab) in float32."""
    n = n.astype(mx.float32)
    parts = [frozen_matmul.forward(n, head.part(*chunk)) for chunk in head.chunks(n.shape[-1])]
    return _capped(mx.concatenate(parts, axis=-1), head.softcap)


def _online(x: mx.array, targets: np.ndarray, head: Head) -> tuple[mx.array, mx.array]:
    """x (R × C) float32, targets (R) -> (Σ loss, ∂Σ loss/∂x), evaluated."""
    label = mx.array(targets)[:, None]
    largest, total = mx.full((len(targets), 1), -mx.inf), mx.zeros((len(targets), 1))
    picked, dx = mx.zeros_like(total), mx.zeros_like(x)
    for start, stop in head.chunks(x.shape[-1]):
        part = head.part(start, stop)
        z = _capped(frozen_matmul.forward(x, part), head.softcap)
        here = mx.take_along_axis(z, mx.clip(label - start, 0, stop - start - 1), axis=-1)
        picked = mx.where((label >= start) & (label < stop), here, picked)
        before, largest = largest, mx.maximum(largest, z.max(axis=-1, keepdims=True))
        shrink, p = exp(before - largest), exp(z - largest)
        here = None
        total = total * shrink + p.sum(axis=-1, keepdims=True)
        p = _through_cap(p, z, head.softcap)
        z = None
        # Scaled before it is added to, so that the sum is taken in the buffer that is there.
        dx = frozen_matmul.add_backward(dx * shrink, p, part)
        part = p = None
        # Now, so that one chunk is gone before the next exists.
        piece(largest, total, picked, dx)
    loss = (largest + mx.log(total) - picked).sum()
    dx = dx / total - _through_cap(head.rows(targets), picked, head.softcap)
    piece(loss, dx)
    return loss, dx


def _full(x: mx.array, targets: np.ndarray, head: Head) -> tuple[mx.array, mx.array]:
    """The same with all logits (R × vocab) at once."""
    chunks = head.chunks(x.shape[-1])
    gathered = Gathered((len(x), head.vocab_size), x.dtype, axis=-1)
    for start, stop in chunks:
        part = _capped(frozen_matmul.forward(x, head.part(start, stop)), head.softcap)
        piece(gathered.put((..., slice(start, stop)), part))
        part = None
    z = gathered.whole()
    picked = mx.take_along_axis(z, mx.array(targets)[:, None], axis=-1)
    largest = z.max(axis=-1, keepdims=True)
    p = exp(z - largest)
    # In two levels: in one float32 sum over a whole row the tail of a peaked distribution is lost.
    total = mx.concatenate([p[:, start:stop].sum(axis=-1, keepdims=True) for start, stop in chunks], axis=-1)
    total = total.sum(axis=-1, keepdims=True)
    loss = (largest + mx.log(total) - picked).sum()
    p = _through_cap(p / total, z, head.softcap)
    piece(loss, picked, p)
    z = None
    dx = -_through_cap(head.rows(targets), picked, head.softcap)
    for start, stop in chunks:
        dx = frozen_matmul.add_backward(dx, p[:, start:stop], head.part(start, stop))
        piece(dx)
    return loss, dx


def _capped(z: mx.array, softcap: float | None) -> mx.array:
    """c·tanh(z/c), as Gemma 2 bounds its logits."""
    return z if softcap is None else softcap * mx.tanh(z / softcap)


def _through_cap(g: mx.array, z: mx.array, softcap: float | None) -> mx.array:
    """g times the cap's derivative 1 − tanh², of capped logits z."""
    return g if softcap is None else g * (1 - (z / softcap).square())
