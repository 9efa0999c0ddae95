"""Kernels are counted in graphs; what one kernel does on a GPU counts as one."""

import mlx.core as mx
import pytest

from mesp_core.device.counting import kernels
from mesp_core.device.evaluation import piece
from mesp_core.device.fused import ELEMENTWISE, NORM, distrust, one_kernel, own_kernel, trusted
from mesp_core.device.in_use import as_on_a_gpu


@pytest.fixture(autouse=True)
def trust():
    yield
    distrust(())


def launched(make):
    with as_on_a_gpu(), kernels() as found:
        piece(make())
    return found.launched


def test_views_are_free_and_copies_are_not(noise):
    x = noise(4, 6)
    assert launched(lambda: x @ x.T) == 1
    assert launched(lambda: (x + 1).reshape(3, 8)) == 1
    assert launched(lambda: x.T.reshape(3, 8)) == 1
    assert launched(lambda: mx.concatenate([x, x, x])) == 3
    assert launched(lambda: x) == 0


def test_elementwise_functions_are_one_kernel_where_that_is_trusted(noise):
    chain = one_kernel(lambda a, b: mx.exp(a) * 2 + (0 if b is None else b))
    x = noise(4, 6)
    expected = mx.exp(x) * 2
    with as_on_a_gpu():
        assert mx.allclose(chain(x, None), expected) and mx.allclose(chain(x, x), expected + x)
    assert launched(lambda: chain(x, x)) == 1
    distrust([ELEMENTWISE])
    assert launched(lambda: chain(x, x)) == 3
    assert not trusted(ELEMENTWISE)


def test_what_is_a_kernel_of_mlx_counts_as_one_where_the_cpu_makes_a_graph_of_it(noise):
    x = noise(4, 64)
    norm = own_kernel(lambda x: mx.fast.rms_norm(x, None, 1e-5))
    assert launched(lambda: norm(x) + 1) == 2
    assert launched(lambda: mx.fast.rms_norm(x, None, 1e-5) + 1) > 2


def test_on_the_cpu_nothing_is_fused():
    assert trusted(NORM) == (mx.default_device().type != mx.DeviceType.cpu)
    with as_on_a_gpu():
        assert trusted(NORM)
