"""Batches: an endless, repeatable order of samples, padded to rectangles."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mesp_core.data.token_set import TokenSet
from mesp_core.errors import DataError

PADDING_ID = 0
NO_LOSS = -1


@dataclass(frozen=True)
class Batch:
    """`inputs` (B, T) int32, `labels` (B, T) int32 with -1 where no loss is taken, `tokens` the number of other labels.

    labels[b, t] is the id that follows inputs[b, t]. Shorter rows are padded on the right with input 0 and label -1;
    `lengths` tells how many inputs of each row are real (None: all of them).
    """

    inputs: np.ndarray
    labels: np.ndarray
    tokens: int
    lengths: tuple[int, ...] | None = None


def check_enough(tokens: TokenSet, batch_size: int, file: Path | None = None) -> None:
    """Refuse to start with fewer samples than a batch has; `file` is the data file the message names.

    Raises:
        DataError: too few, with the counts and the likely cause.
    """
    if len(tokens) >= batch_size:
        return
    counts = f"{tokens.rows} rows read, {tokens.skipped} skipped"
    if tokens.skipped:
        cause = "the skipped rows have nothing to learn within the sequence length; raise seq_len or lower batch_size"
    else:
        cause = "use more data or lower batch_size"
    raise DataError(
        f"{file or 'The data'} gives {len(tokens)} samples, fewer than a batch of {batch_size} ({counts}): {cause}."
    )


def batches(tokens: TokenSet, batch_size: int, seed: int) -> Iterator[Batch]:
    """Batches without end. Each epoch visits the samples in a new order that depends on `seed` (≥ 0) and the epoch
    alone; samples that do not fill its last batch are left out of it.

    Raises:
        DataError: at once, when there are fewer samples than `batch_size` (≥ 1).
    """
    check_enough(tokens, batch_size)
    return _batches(tokens, batch_size, seed)


def _batches(tokens: TokenSet, batch_size: int, seed: int) -> Iterator[Batch]:
    epoch = 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(tokens))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield _collate(tokens, order[start : start + batch_size])
        epoch += 1


def _collate(tokens: TokenSet, indices: np.ndarray) -> Batch:
    samples = [tokens.sample(int(index)) for index in indices]
    width = max(len(ids) for ids, _ in samples) - 1
    inputs = np.full((len(samples), width), PADDING_ID, np.int32)
    labels = np.full((len(samples), width), NO_LOSS, np.int32)
    for row, (ids, mask) in enumerate(samples):
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, : len(ids) - 1] = np.where(mask[1:], ids[1:], NO_LOSS)
    lengths = tuple(len(ids) - 1 for ids, _ in samples)
    return Batch(inputs, labels, int((labels != NO_LOSS).sum()), lengths)
