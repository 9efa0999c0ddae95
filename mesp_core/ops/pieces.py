"""How much is worked on at a time. Said once, for the engine that works and the planner that foretells. Loads no MLX.

Every number is the smallest that is not slow, or the largest that still gains speed; where, is said by whoever uses it.
"""

# Rows of (tokens × …) arrays: by lean and by the loss, and of a norm's backward, which takes several float32 arrays.
TOKENS, NORM_TOKENS = 384, 64
# Elements of a frozen matrix that are dequantised at once: mx.dequantize makes float32 temporaries. Larger is not faster.
BLOCK_ELEMENTS = 229_376
# Bytes of a frozen matrix, as it is stored, that the quantised kernel reads from the file at once.
STORED_BYTES = 4 * 1024 * 1024
# Of the vocabulary: elements of the head where they are dequantised, rows where they are not.
HEAD_ELEMENTS, HEAD_ROWS = 344_064, 8192
# Of the MLP's intermediate features: where its matrices are multiplied as they are stored, and mesp's at most elsewhere.
MLP_FEATURES, MESP_FEATURES = 1024, 256
# Of attention: rows (queries, times the query heads of a key/value head) and keys of the one tile of probabilities. At 256
# tokens half of either takes 10 % longer and 0.6 MB less, twice of either is no faster and takes 1.2 MB more.
TILE_ROWS, TILE_KEYS = 512, 256
