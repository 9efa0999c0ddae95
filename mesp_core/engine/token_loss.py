"""From the last block's output to the loss and back: final norm, head, cross-entropy, for the labelled tokens alone."""

import mlx.core as mx
import numpy as np

from mesp_core.device.evaluation import piece, settle
from mesp_core.device.gathered import Gathered
from mesp_core.engine import norm
from mesp_core.engine.rowwise import row_slices
from mesp_core.ops import cross_entropy, rms_norm
from mesp_core.ops.cross_entropy import Head
from mesp_core.ops.pieces import TOKENS


def loss_and_gradient(
    x: mx.array, labels: np.ndarray, weight: mx.array, eps: float, head: Head, full: bool = False
) -> tuple[mx.array, mx.array]:
    """x (B × L × C), labels (B × L, -1: none), `weight` of the norm -> Σ loss (float32), ∂Σ loss/∂x (B × L × C), evaluated.

    A token without a label costs nothing: its row is never normalised nor multiplied. `full`: all logits of all labelled
    tokens at once, as most trainers do, instead of some tokens and some of the vocabulary at a time.
    """
    shape, labels = x.shape, labels.reshape(-1)
    x = x.reshape(-1, shape[-1])
    labelled = np.flatnonzero(labels >= 0).astype(np.int32)
    if len(labelled) == 0:
        return mx.array(0.0), mx.zeros(shape, x.dtype)
    whole = len(labelled) == len(labels)
    total = mx.array(0.0)
    gradient = Gathered((len(labelled), shape[-1]), x.dtype)
    for rows in row_slices(len(labelled), len(labelled) if full else TOKENS):
        xs = x[rows] if whole else x[mx.array(labelled[rows])]
        n = rms_norm.forward(xs, weight, eps)
        settle(xs, n)
        loss, dn = cross_entropy.forward_backward(n, labels[labelled[rows]], head, full)
        n = None
        made = gradient.put(rows, norm.backward(dn, xs, weight, eps))
        dn = xs = None
        total = total + loss
        piece(total, made)
        made = None
    g = gradient.whole()
    if not whole:
        g = mx.zeros_like(x).at[mx.array(labelled)].add(g)
        piece(g)
    return total, g.reshape(shape)
