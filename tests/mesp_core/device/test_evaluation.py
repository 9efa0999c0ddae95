"""Work is handed over piece by piece: at once done on the CPU, two at a time under way on a GPU."""

import mlx.core as mx
import pytest

from mesp_core.device import evaluation
from mesp_core.device.evaluation import counts, joined, needed, piece, reset_counts, settle, watched
from mesp_core.device.in_use import as_on_a_gpu, on_gpu


@pytest.fixture(autouse=True)
def fresh():
    evaluation._marks.clear()
    reset_counts()


def active_after(make):
    """Bytes more than before that are allocated after `make`."""
    before = mx.get_active_memory()
    held = make()
    return mx.get_active_memory() - before, held


def test_whether_it_is_a_gpu_can_be_said_for_a_while():
    outside = on_gpu()
    with as_on_a_gpu():
        with as_on_a_gpu():
            assert on_gpu()
        assert on_gpu()
    assert on_gpu() == outside == (mx.default_device().type != mx.DeviceType.cpu)


@pytest.mark.skipif(on_gpu(), reason="about the CPU")
def test_on_the_cpu_each_piece_and_each_settling_is_done_on_return(exact_memory):
    def make():
        x = mx.full((256, 256), 0.5)
        settle(x)
        y = [x + 1, {"part": x + 2}]
        piece(y)
        return x, y

    nbytes, _held = active_after(make)
    assert nbytes == 3 * 256 * 256 * 4
    assert (counts().pieces, counts().waits, counts().drains) == (2, 2, 2)


def test_on_a_gpu_two_pieces_are_under_way_and_only_what_is_needed_drains():
    with as_on_a_gpu():
        x = mx.random.normal((64, 64))
        for _ in range(5):
            x = x @ x / 64
            settle(x)  # nothing: a GPU goes on
            piece(x, None)
        assert (counts().pieces, counts().waits, counts().drains) == (5, 3, 0)
        needed(x)
        assert (counts().pieces, counts().waits, counts().drains) == (5, 4, 1)
        assert x.sum().item() == pytest.approx(x.sum().item())


def test_parts_are_joined_in_order_and_let_go():
    parts = [mx.full((2, n), n) for n in (1, 2, 3)]
    assert joined(parts, axis=1).tolist() == 2 * [[1, 2, 2, 3, 3, 3]]
    assert not parts
    only = mx.ones(3)
    assert joined([only]) is only


def test_who_watches_is_told_before_it_is_evaluated():
    told = []
    with watched(lambda arrays: told.append(arrays)):
        x = mx.ones(3) + 1
        piece(x)
        needed(x)
    piece(x)
    assert [arrays[0] is x for arrays in told] == [True, True]
