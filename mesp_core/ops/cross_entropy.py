"""Next-token cross-entropy through a frozen head: loss = Σ over labelled tokens of (logsumexp(z) − z[label]), z = n·W_headᵀ.

Loss and input gradient are made together, because the logits are the largest array of a run: once made, they are turned
into their own gradient. Rows without a label (label < 0) are never computed.
"""

import mlx.core as mx
import numpy as np

from mesp_core.ops import frozen_matmul
from mesp_core.ops.frozen_matmul import FrozenLinear


def forward_backward(n: mx.array, labels: np.ndarray, head: FrozenLinear, weight: float) -> tuple[mx.array, mx.array]:
    """n (B × L × C), labels (B × L, -1: none) -> (Σ loss, a float32 scalar; ∂(weight·Σ loss)/∂n, in n's dtype).

    With `weight` = 1 / (labelled tokens of the whole step), accumulated micro-batches add up to the mean over tokens.
    """
    flat = n.reshape(-1, n.shape[-1])
    rows = np.flatnonzero(labels.reshape(-1) >= 0)
    if not len(rows):
        return mx.array(0.0), mx.zeros_like(n)
    whole = len(rows) == flat.shape[0]
    targets = mx.array(labels.reshape(-1)[rows].astype(np.int32))[:, None]
    at = mx.array(rows.astype(np.int32))
    z = frozen_matmul.forward((flat if whole else flat[at]).astype(mx.float32), head)  # (rows × vocab)
    lse = mx.logsumexp(z, axis=-1, keepdims=True)
    picked = mx.take_along_axis(z, targets, axis=-1)
    loss = (lse - picked).sum()
    mx.eval(loss, lse)
    picked = None
    # softmax − onehot, times the weight. Each step is the only user of the one before and takes over its buffer.
    dz = weight * mx.exp(z - lse)
    z = None
    at_target = mx.take_along_axis(dz, targets, axis=-1) - weight
    mx.eval(dz, at_target)
    dz = mx.put_along_axis(dz, targets, at_target, axis=-1)
    mx.eval(dz)
    dn = frozen_matmul.backward(dz, head).astype(n.dtype)
    dz = None
    mx.eval(dn)
    if not whole:
        dn = mx.zeros_like(flat).at[at].add(dn)
    return loss, dn.reshape(n.shape)


def logits(n: mx.array, head: FrozenLinear) -> mx.array:
    """n (… × C) -> z = n·W_headᵀ (… × vocab) in float32."""
    return frozen_matmul.forward(n.astype(mx.float32), head)
