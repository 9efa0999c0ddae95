"""y = x·W₀ᵀ + b and ∂x = g·W₀ against a plain product by a matrix that numpy unpacked."""

import mmap
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesp_core.models.safetensors import read_header
from mesp_core.ops import frozen_matmul, pieces
from mesp_core.weights.stored_tensor import StoredTensor

KERNELS = ("quantized", "dequantize")
FORMATS = [None, *[(bits, group_size) for bits in (2, 3, 4, 5, 6, 8) for group_size in (32, 64, 128)]]
# ‖Δ‖/‖y‖ to a float32 product of the same inputs. `dequantize` rounds once, at the end (2⁻⁹ and 2⁻¹² at most);
# `quantized` works in the activations' dtype throughout, scales included: the self-check's bound, or better.
BOUNDS = {
    "dequantize": {mx.float32: 1e-5, mx.bfloat16: 3e-3, mx.float16: 4e-4},
    "quantized": {mx.float32: 1e-5, mx.bfloat16: 2e-2, mx.float16: 2e-3},
}


def quantised(bits_and_group):
    return {} if bits_and_group is None else {"bits": bits_and_group[0], "group_size": bits_and_group[1]}


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_the_packed_bits_are_read_as_numpy_reads_them(format, make_linear, assert_close):
    linear, dense, _ = make_linear(9, 128, **quantised(format), dtype=mx.float16)
    assert (linear.out_features, linear.in_features) == (9, 128)
    rows = frozen_matmul.dequantized_rows(linear, slice(2, 7))
    assert rows.dtype == mx.float32
    assert_close(rows, dense[2:7], 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_both_products_against_a_plain_one(format, kernel, make_linear, noise, plain, assert_close):
    linear, dense, bias = make_linear(40, 128, **quantised(format), bias=True, kernel=kernel)
    x, g = noise(7, 128), noise(7, 40, seed=2)
    y, (dx,) = mx.vjp(lambda x: plain.linear(x, dense, bias), [x], [g])
    assert_close(frozen_matmul.forward(x, linear), y[0], name="y")
    assert_close(frozen_matmul.backward(g, linear), dx, name="dx")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("leading", [(1,), (3,), (33,), (2, 7), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("out_features", [1, 37, 96])
def test_any_leading_axes(leading, out_features, kernel, make_linear, noise, plain, assert_close):
    linear, dense, bias = make_linear(out_features, 64, bits=4, bias=True, kernel=kernel)
    x, g = noise(*leading, 64), noise(*leading, out_features, seed=2)
    y, (dx,) = mx.vjp(lambda x: plain.linear(x, dense, bias), [x], [g])
    assert_close(frozen_matmul.forward(x, linear), y[0], name="y")
    assert_close(frozen_matmul.backward(g, linear), dx, name="dx")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("format", [None, (4, 64)], ids=str)
def test_mlx_differentiates_through_the_forward(format, kernel, make_linear, noise, plain, assert_close):
    """mebp differentiates a block automatically: the forward's vjp must be right with more before and after it."""
    linear, dense, bias = make_linear(37, 64, **quantised(format), bias=True, kernel=kernel)
    x, g = noise(2, 7, 64), noise(2, 7, 37, seed=2)

    def chain(product):
        return lambda x: mx.tanh(product(mx.sin(x))) * product(x)

    y, (dx,) = mx.vjp(chain(lambda x: frozen_matmul.forward(x, linear)), [x], [g])
    expected_y, (expected,) = mx.vjp(chain(lambda x: plain.linear(x, dense, bias)), [x], [g])
    assert_close(y[0], expected_y[0], name="y")
    assert_close(dx, expected, name="dx")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("format", [None, (4, 32), (3, 64)], ids=str)
@pytest.mark.parametrize("scales", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", BOUNDS["quantized"], ids=str)
def test_the_result_has_the_inputs_dtype_and_is_near_float32(
    dtype, scales, format, kernel, make_linear, noise, plain, assert_close
):
    linear, dense, bias = make_linear(48, 64, **quantised(format), dtype=scales, bias=True, kernel=kernel)
    x, g = noise(5, 64, dtype=dtype), noise(5, 48, seed=2, dtype=dtype)
    product = plain.linear(x.astype(mx.float32), dense, bias)
    y, (dx,) = mx.vjp(lambda x: frozen_matmul.forward(x, linear), [x], [g])
    back = frozen_matmul.backward(g, linear)
    assert (y[0].dtype, dx.dtype, back.dtype) == (dtype, dtype, dtype)
    bound = BOUNDS[kernel][dtype]
    assert_close(y[0], product, bound, "y")
    assert_close(back, g.astype(mx.float32) @ dense, bound, "dx")
    assert mx.array_equal(dx, back)


def test_float16_scales_cost_nothing_in_float32(make_linear, noise, relative_error):
    """mx.dequantize computes in the scales' dtype; a W₀ made that way is wrong by some 1e-4."""
    linear, dense, _ = make_linear(40, 128, bits=4, group_size=64, dtype=mx.float16)
    x = noise(7, 128)
    careless = mx.dequantize(linear.weight, linear.scales, linear.biases, group_size=64, bits=4).astype(mx.float32)
    assert relative_error(x @ careless.T, x @ dense.T) > 5e-5
    assert relative_error(frozen_matmul.forward(x, linear), x @ dense.T) < 2e-6


@pytest.mark.parametrize("format", [None, (4, 32)], ids=str)
@pytest.mark.parametrize("elements", [1, 64, 3 * 64, 36 * 64 + 5, 37 * 64, 10**9])
def test_row_blocks_that_do_not_divide_the_rows(elements, format, make_linear, noise, plain, assert_close, monkeypatch):
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", elements)
    linear, dense, bias = make_linear(37, 64, **quantised(format), bias=True)
    assert len(frozen_matmul.row_blocks(linear)) == -(-37 // max(1, elements // 64))
    x, g = noise(2, 3, 64), noise(2, 3, 37, seed=2)
    y, (dx,) = mx.vjp(lambda x: plain.linear(x, dense, bias), [x], [g])
    assert_close(frozen_matmul.forward(x, linear), y[0], name="y")
    assert_close(frozen_matmul.backward(g, linear), dx, name="dx")


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_rows_give_no_rows(kernel, make_linear):
    linear, _, _ = make_linear(37, 64, bits=4, bias=True, kernel=kernel)
    assert frozen_matmul.forward(mx.zeros((0, 64)), linear).shape == (0, 37)
    assert frozen_matmul.backward(mx.zeros((0, 37)), linear).shape == (0, 64)


def test_bytes_held(make_linear):
    linear, _, _ = make_linear(10, 64, bits=4, group_size=32, dtype=mx.float16, bias=True)
    assert linear.nbytes == 10 * 64 // 2 + 2 * 2 * (10 * 2) + 2 * 10


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.integers(1, 9),
    out_features=st.integers(1, 50),
    groups=st.integers(1, 3),
    format=st.sampled_from(FORMATS),
    elements=st.integers(1, 4000),
    kernel=st.sampled_from(KERNELS),
)
def test_any_shape_and_any_block_size(
    tokens, out_features, groups, format, elements, kernel, make_linear, noise, assert_close
):
    in_features = groups * (format[1] if format else 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BLOCK_ELEMENTS", elements)
        linear, dense, _ = make_linear(out_features, in_features, **quantised(format), kernel=kernel)
        blocks = frozen_matmul.row_blocks(linear)
        assert [row for start, stop in blocks for row in range(start, stop)] == list(range(out_features))
        assert all((stop - start) * in_features <= max(elements, in_features) for start, stop in blocks)
        x, g = noise(tokens, in_features), noise(tokens, out_features, seed=2)
        assert_close(frozen_matmul.forward(x, linear), x @ dense.T, name="y")
        assert_close(frozen_matmul.backward(g, linear), g @ dense, name="dx")


def test_the_reference_itself_is_not_the_function_under_test(make_linear):
    """The unpacked matrix is near the one that was packed: 8 bits lose less than a percent."""
    _, dense, _ = make_linear(16, 64, bits=8)
    _, original, _ = make_linear(16, 64)
    assert 0 < np.linalg.norm(np.array(dense - original)) / np.linalg.norm(np.array(original)) < 0.01


@pytest.fixture
def store(tmp_path):
    """store(linear) -> the same layer with its matrices in a file."""

    def write(linear):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
        arrays = {name: getattr(linear, name) for name in ("weight", "scales", "biases")}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        mx.save_safetensors(str(file), arrays)
        with file.open("rb") as stream:
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        entries = read_header(file)
        return replace(linear, **{name: StoredTensor(entries[name], mapping, lambda: None) for name in arrays})

    return write


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scales", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_layer_in_its_file_multiplies_as_one_in_memory(
    format, scales, kernel, make_linear, store, noise, assert_close, monkeypatch
):
    """Whole, in row blocks that do not divide it, and in parts; rows and columns are cut between words whatever the bits."""
    linear, dense, _ = make_linear(150, 384, **quantised(format), dtype=scales, bias=True, kernel=kernel)
    stored = store(linear)
    assert stored.stored and not linear.stored
    x, g = noise(3, 384), noise(3, 150, seed=2)
    y, dx = x @ dense.T + linear.bias.astype(mx.float32), g @ dense
    row = (linear.weight.nbytes + (0 if format is None else 2 * linear.scales.nbytes)) // 150
    for elements, packed in ((10**9, 10**9), (40 * 384, 70 * row)):
        monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", elements)
        monkeypatch.setattr(pieces, "STORED_BYTES", packed)
        assert_close(frozen_matmul.forward(x, stored), y, name="y")
        assert_close(frozen_matmul.backward(g, stored), dx, name="dx")
    assert frozen_matmul.stored_blocks(stored) == [(0, 64), (64, 128), (128, 150)]
    rows, columns = frozen_matmul.outputs(stored, 30, 75), frozen_matmul.inputs(stored, 128, 256)
    assert not rows.stored and not columns.stored and columns.bias is None
    assert_close(frozen_matmul.forward(x, rows), y[:, 30:75], name="rows")
    assert_close(frozen_matmul.backward(g[:, 30:75], rows), g[:, 30:75] @ dense[30:75], name="rows, back")
    assert_close(frozen_matmul.forward(x[:, 128:256], columns), x[:, 128:256] @ dense[:, 128:256].T, name="columns")
    assert_close(frozen_matmul.backward(g, columns), g @ dense[:, 128:256], name="columns, back")
    ids = np.array([149, 0, 0, 17])
    assert_close(frozen_matmul.dequantized_rows(stored, ids), dense[mx.array(ids)], 1e-6, "ids")


@pytest.mark.parametrize("group_size, start, stop", [(32, 16, 64), (64, 0, 96), (32, 32, 40)])
def test_columns_that_cut_a_group_are_refused(group_size, start, stop, make_linear):
    linear, _, _ = make_linear(4, 128, bits=3, group_size=group_size)
    with pytest.raises(ValueError, match="cut a group"):
        frozen_matmul.inputs(linear, start, stop)


@pytest.mark.parametrize("dtype", BOUNDS["quantized"], ids=str)
def test_many_row_blocks_in_16_bits_are_added_in_float32(dtype, make_linear, store, noise, assert_close, monkeypatch):
    """1024 rows in 16 blocks: what the blocks' own products are, summed and rounded once."""
    linear, dense, _ = make_linear(1024, 64, bits=4, dtype=dtype, kernel="quantized")
    g = noise(5, 1024, dtype=dtype)
    monkeypatch.setattr(pieces, "STORED_BYTES", 64 * 40)
    blocks = frozen_matmul.stored_blocks(linear)
    assert len(blocks) >= 16
    products = [frozen_matmul.backward(g[:, a:b], frozen_matmul.outputs(linear, a, b)) for a, b in blocks]
    dx = frozen_matmul.backward(g, store(linear))
    assert dx.dtype == dtype
    assert mx.array_equal(dx, sum(product.astype(mx.float32) for product in products).astype(dtype))
    assert_close(dx, g.astype(mx.float32) @ dense, BOUNDS["quantized"][dtype])
