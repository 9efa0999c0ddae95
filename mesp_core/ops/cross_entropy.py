"""Next-token cross-entropy through a frozen head, without ever holding all logits.

loss = Σ over labelled tokens of (logsumexp(z) − z[label]) with z = n·Wᵀ, and ∂n = softmax(z)·W − W[label], in one pass
over the vocabulary: the running maximum and sum of an online softmax (Milakov & Gimelshein, arXiv 1805.02867) also rescale
the running softmax(z)·W. Exact. Rows without a label (label < 0) are never computed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mesp_core.ops import frozen_matmul
from mesp_core.ops.frozen_matmul import FrozenLinear

# Vocabulary rows at a time: where they are dequantised, this many elements; where they are not, so many rows.
DEQUANTIZED_ELEMENTS, QUANTIZED_ROWS = 2 * frozen_matmul.BLOCK_ELEMENTS, 8192


@dataclass(frozen=True)
class Head:
    """W (vocab × C), served in pieces.

    `part(start, stop)` makes the logits start…stop-1; `rows(ids)` is W[ids] in float32.
    """

    vocab_size: int
    kernel: str
    part: Callable[[int, int], FrozenLinear]
    rows: Callable[[np.ndarray], mx.array]

    @classmethod
    def of(cls, linear: FrozenLinear) -> "Head":
        """The head of a layer that is held as a whole."""

        def rows(ids: np.ndarray) -> mx.array:
            return frozen_matmul.dequantized_rows(linear, mx.array(ids))

        return cls(linear.out_features, linear.kernel, lambda a, b: frozen_matmul.outputs(linear, a, b), rows)

    def chunks(self, hidden_size: int) -> Iterator[tuple[int, int]]:
        """Ranges of the vocabulary, one of which is worked on at a time."""
        size = QUANTIZED_ROWS if self.kernel == "quantized" else max(1, DEQUANTIZED_ELEMENTS // hidden_size)
        for start in range(0, self.vocab_size, size):
            yield start, min(start + size, self.vocab_size)


def forward_backward(n: mx.array, labels: np.ndarray, head: Head) -> tuple[mx.array, mx.array]:
    """n (B × L × C), labels (B × L, -1: none) -> (Σ loss, a float32 scalar; ∂Σ loss/∂n, in n's dtype)."""
    flat, labels = n.reshape(-1, n.shape[-1]), labels.reshape(-1)
    labelled = np.flatnonzero(labels >= 0).astype(np.int32)
    if not len(labelled):
        return mx.array(0.0), mx.zeros_like(n)
    whole, at = len(labelled) == len(labels), mx.array(labelled)
    targets = labels[labelled].astype(np.int32)
    loss, dx = _online((flat if whole else flat[at]).astype(mx.float32), targets, head)
    dx = dx.astype(n.dtype)
    if not whole:
        dx = mx.zeros_like(flat).at[at].add(dx)
    return loss, dx.reshape(n.shape)


def logits(n: mx.array, head: Head) -> mx.array:
    """n (… × C) -> z = n·Wᵀ (… × vocab) in float32."""
    n = n.astype(mx.float32)
    return mx.concatenate([frozen_matmul.forward(n, head.part(*chunk)) for chunk in head.chunks(n.shape[-1])], axis=-1)


def _online(x: mx.array, targets: np.ndarray, head: Head) -> tuple[mx.array, mx.array]:
    """x (R × C) float32, targets (R) -> (Σ loss, ∂Σ loss/∂x), evaluated."""
    label = mx.array(targets)[:, None]
    largest, total = mx.full((len(targets), 1), -mx.inf), mx.zeros((len(targets), 1))
    picked, dx = mx.zeros_like(total), mx.zeros_like(x)
    for start, stop in head.chunks(x.shape[-1]):
        part = head.part(start, stop)
        z = frozen_matmul.forward(x, part)
        here = mx.take_along_axis(z, mx.clip(label - start, 0, stop - start - 1), axis=-1)
        picked = mx.where((label >= start) & (label < stop), here, picked)
        before, largest = largest, mx.maximum(largest, z.max(axis=-1, keepdims=True))
        shrink, p = mx.exp(before - largest), mx.exp(z - largest)
        z = here = None
        total = total * shrink + p.sum(axis=-1, keepdims=True)
        dx = dx * shrink + frozen_matmul.backward(p, part)
        part = p = None
        # Now, so that one chunk is gone before the next exists.
        mx.eval(largest, total, picked, dx)
    loss = (largest + mx.log(total) - picked).sum()
    dx = dx / total - head.rows(targets)
    mx.eval(loss, dx)
    return loss, dx
