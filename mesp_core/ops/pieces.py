"""How much is worked on at a time. Said once, for the engine that works and the planner that foretells. Loads no MLX.

Each number was measured: it is either the smallest that costs no speed, or the largest that still gains some. The functions
below make sizes of them; nobody else computes a size on their own, so that a plan cannot drift from what it foretells.
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
# The same on a GPU: scores of all heads in one tile, and keys of it.
GPU_TILE, GPU_TILE_KEYS = 458_752, 512


def ranges(total: int, at_once: int) -> list[tuple[int, int]]:
    """0…total-1 cut into (start, stop), the last of which may be shorter."""
    at_once = max(1, at_once)
    return [(start, min(start + at_once, total)) for start in range(0, total, at_once)]


def dequantized_rows(in_features: int) -> int:
    """Rows of a frozen matrix that are dequantised at once."""
    return max(1, BLOCK_ELEMENTS // in_features)


def stored_rows(row_bytes: int) -> int:
    """Rows of a frozen matrix that the quantised kernel reads from the file at once, `row_bytes` each as it is stored."""
    rows = STORED_BYTES // row_bytes
    return max(1, rows // 64 * 64 or rows)  # MLX's kernels are fastest where 64 divides the rows


def head_rows(hidden_size: int, quantized: bool) -> int:
    """Of the vocabulary: how much of it the loss works on at once."""
    return HEAD_ROWS if quantized else max(1, HEAD_ELEMENTS // hidden_size)


def mlp_features(hidden_size: int, part_elements: int, group_size: int | None, quantized: bool) -> int:
    """Of the MLP's intermediate features: how many at once, cut between groups of the matrix that takes them in.

    `part_elements` counts only where matrices are dequantised.
    """
    unit = group_size or 1
    features = MLP_FEATURES if quantized else part_elements // hidden_size
    return max(unit, features // unit * unit)


def mesp_part_elements(hidden_size: int) -> int:
    """Elements of an MLP matrix that mesp's backward dequantises at once."""
    return min(BLOCK_ELEMENTS, MESP_FEATURES * hidden_size)


def query_tile(group: int) -> int:
    """Queries of a tile of scores, of each of the `group` query heads that share a key/value head.

    A power of two, and no more than keys: a tile on the diagonal then holds at least one key of each query.
    """
    return 1 << max(1, min(TILE_ROWS // group, TILE_KEYS)).bit_length() - 1


def gpu_tile(heads: int, length: int, elements: int) -> tuple[int, int]:
    """Queries and keys of a tile of about so many `elements`, of all `heads` of a batch; powers of two, no fewer keys."""
    keys = min(GPU_TILE_KEYS, 1 << max(0, length - 1).bit_length())
    rows = max(1, elements // (heads * keys))
    return min(keys, 1 << rows.bit_length() - 1), keys
