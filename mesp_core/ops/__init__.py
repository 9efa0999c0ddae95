"""The maths: every op's `forward` and `backward` side by side in one file, knowing no model and no file.

Shapes in comments: T tokens (batch and sequence flattened, or any leading axes), B batch, L positions, H query heads,
K key/value heads, D head dim, r rank. Sums, norms and softmax are taken in float32 whatever the dtype.
"""
