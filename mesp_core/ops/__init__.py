"""The maths: every op's `forward` and `backward` side by side in one file, knowing no model and no file.

Letters in comments and docstrings of the whole package: B batch, L positions of a sample, T = B·L tokens, of which R are
rows at hand; C hidden size; H query heads, K key/value heads, D head dim; M intermediate features of the MLP; r rank. A and
B are an adapter's two matrices and s its scale; x an input, n a norm's output, y an output, g = ∂L/∂y. Shapes are written
(B × L × C). `lse` is the logarithm of a row's summed exponentials. Sums, norms and softmax are taken in float32 whatever
the dtype.
"""
