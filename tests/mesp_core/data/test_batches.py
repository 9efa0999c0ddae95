from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesp_core.data.batches import batches, check_enough
from mesp_core.data.token_set import TokenSet, TokenSetWriter
from mesp_core.errors import DataError


@pytest.fixture
def token_set(tmp_path_factory):
    """token_set(samples, **counts): a token set of (ids, mask) samples; a mask of None learns all but the first."""

    def make(samples, **counts):
        folder = tmp_path_factory.mktemp("tokens")
        writer = TokenSetWriter(folder)
        for line, (ids, mask) in enumerate(samples, 1):
            writer.add(ids, np.asarray([0] + [1] * (len(ids) - 1) if mask is None else mask), line)
        writer.close(**{"kind": "chat", "rows": len(samples), "skipped": 0, "truncated": 0, **counts})
        return TokenSet.open(folder)

    return make


GOLDEN = [[13, 12, 15, 14, 10, 11], [11, 14, 13, 10, 12, 15]]


def numbered(count):
    """Samples that can be told apart: sample i is [10 + i, 1]."""
    return [([10 + i, 1], None) for i in range(count)]


def first_ids(tokens, batch_size, seed, count):
    return [batch.inputs[:, 0].tolist() for batch in islice(batches(tokens, batch_size, seed), count)]


def test_inputs_labels_and_padding(token_set):
    tokens = token_set([([5, 6, 7, 8], None), ([9, 0, 4], [0, 0, 1])])
    batch = next(batches(tokens, 2, seed=0))
    order = np.argsort(-batch.inputs[:, 0])  # sample 1 (id 9) first, then sample 0
    assert batch.inputs[order].tolist() == [[9, 0, 0], [5, 6, 7]]
    assert batch.labels[order].tolist() == [[-1, 4, -1], [6, 7, 8]]
    assert batch.tokens == 4
    assert batch.inputs.dtype == batch.labels.dtype == np.int32


def test_an_id_of_zero_is_a_label_too(token_set):
    batch = next(batches(token_set([([3, 0], None)]), 1, seed=0))
    assert batch.labels.tolist() == [[0]] and batch.tokens == 1


def test_the_width_is_that_of_the_batch_not_of_the_set(token_set):
    tokens = token_set([([1, 2], None), ([1, 2, 3, 4, 5], None)])
    assert sorted(batch.inputs.shape[1] for batch in islice(batches(tokens, 1, seed=0), 2)) == [1, 4]


def test_each_epoch_is_a_new_permutation(token_set):
    tokens = token_set(numbered(12))
    flat = [ids[0] for ids in first_ids(tokens, 1, seed=3, count=36)]
    epochs = [flat[:12], flat[12:24], flat[24:]]
    assert all(sorted(epoch) == list(range(10, 22)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_an_incomplete_last_batch_is_dropped(token_set):
    tokens = token_set(numbered(5))
    for start in range(0, 8, 2):
        epoch = first_ids(tokens, 2, seed=1, count=8)[start : start + 2]
        seen = [i for ids in epoch for i in ids]
        assert len(seen) == 4 == len(set(seen))


def test_same_seed_same_batches_on_every_platform(token_set):
    tokens = token_set(numbered(6))
    assert first_ids(tokens, 2, seed=7, count=9) == first_ids(tokens, 2, seed=7, count=9)
    assert first_ids(tokens, 2, seed=7, count=9) != first_ids(tokens, 2, seed=8, count=9)
    # Written down once, so that a platform or NumPy version that shuffles differently is noticed.
    assert first_ids(tokens, 6, seed=0, count=2) == GOLDEN


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_label_of_an_epoch_appears_exactly_once(token_set, data):
    lengths = data.draw(st.lists(st.integers(2, 7), min_size=1, max_size=8))
    ids = iter(range(1, 100))
    samples = []
    for length in lengths:
        mask = [0, *data.draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))]
        samples.append(([next(ids) for _ in range(length)], mask))
    tokens = token_set(samples)
    epoch = list(islice(batches(tokens, 1, data.draw(st.integers(0, 5))), len(samples)))
    labels = sorted(int(i) for batch in epoch for i in batch.labels[batch.labels >= 0])
    assert labels == sorted(i for sample, mask in samples for i, m in zip(sample, mask, strict=True) if m)
    assert sum(batch.tokens for batch in epoch) == len(labels)


def test_too_few_samples(token_set):
    tokens = token_set(numbered(3), rows=5, skipped=2)
    check_enough(tokens, 3)
    with pytest.raises(DataError, match=r"my\.jsonl gives 3 samples.*batch of 4.*5 rows read, 2 skipped.*raise seq_len"):
        check_enough(tokens, 4, "my.jsonl")
    with pytest.raises(DataError, match="lower batch_size"):
        batches(token_set(numbered(1)), 2, seed=0)  # at once, not at the first batch
