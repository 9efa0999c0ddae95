"""Loss and input gradient through a frozen head against MLX's autodiff of −log softmax, row by row."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.ops import cross_entropy, frozen_matmul, pieces
from mesp_core.ops.cross_entropy import Head

VOCAB, HIDDEN = 61, 32
LABELS = {
    "all rows": [[3, 0, 60, 7, 7], [1, 2, 59, 4, 5]],
    "padded": [[3, 0, 60, -1, -1], [1, -1, -1, -1, -1]],
    "masked in the middle": [[-1, 0, -1, 60, 9], [-1, -1, -1, 4, -1]],
    "one row": [[-1, -1, -1, -1, -1], [-1, -1, 60, -1, -1]],
    "one row in all": [[12]],
    "odd": [[5, -1, 7]],
}


def reference(plain, n, labels, dense):
    return mx.value_and_grad(lambda n: plain.cross_entropy(n, labels, dense))(n)


@pytest.fixture(autouse=True, params=[61, 60, 16, 1], ids=lambda rows: f"{rows} entries at a time")
def chunk(request, monkeypatch):
    """The vocabulary whole, in chunks the last of which is shorter, and entry by entry."""
    monkeypatch.setattr(pieces, "HEAD_ELEMENTS", request.param * HIDDEN)
    monkeypatch.setattr(pieces, "HEAD_ROWS", request.param)
    return request.param


@pytest.fixture(params=LABELS)
def labels(request):
    return np.array(LABELS[request.param], np.int32)


@pytest.mark.parametrize("full", [False, True], ids=["", "full"])
@pytest.mark.parametrize("bits, kernel", [(None, "dequantize"), (4, "dequantize"), (4, "quantized"), (6, "quantized")])
def test_loss_and_gradient(labels, bits, kernel, full, make_linear, noise, plain, assert_close):
    head, dense, _ = make_linear(VOCAB, HIDDEN, bits=bits, kernel=kernel, dtype=mx.bfloat16)
    n = noise(*labels.shape, HIDDEN, scale=2.0)
    expected, expected_dn = reference(plain, n, labels, dense)
    loss, dn = cross_entropy.forward_backward(n, labels, Head.of(head), full)
    assert loss.shape == () and loss.dtype == mx.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert_close(dn, expected_dn, name="dn")
    unlabelled = np.array(dn)[labels < 0]
    assert not unlabelled.any()


@pytest.mark.parametrize("full", [False, True], ids=["", "full"])
@pytest.mark.parametrize("cap, scale", [(30.0, 2.0), (1.5, 1.5), (30.0, 300.0)], ids=["hardly", "bent", "flat"])
def test_softcapped_logits(cap, scale, full, labels, make_linear, noise, assert_close):
    """c·tanh(z/c) against autodiff: where hardly a logit feels it, where all do, and where some are at ±c."""
    linear, dense, _ = make_linear(VOCAB, HIDDEN, bits=4)
    head, n = replace(Head.of(linear), softcap=cap), noise(*labels.shape, HIDDEN, scale=scale)
    rows, wanted = np.nonzero(labels >= 0), labels[labels >= 0]

    def plainly(n):
        z = cap * mx.tanh((n @ dense.T) / cap)
        z = z[mx.array(rows[0]), mx.array(rows[1])]
        return (mx.log(mx.exp(z).sum(axis=-1)) - z[mx.arange(len(wanted)), mx.array(wanted)]).sum()

    expected, expected_dn = mx.value_and_grad(plainly)(n)
    loss, dn = cross_entropy.forward_backward(n, labels, head, full)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    # At ±c the derivative 1 − tanh² is a small difference of large numbers, in autodiff as well.
    assert_close(dn, expected_dn, 1e-4 if scale > cap else 1e-5, "dn")
    assert not np.array(dn)[labels < 0].any()
    assert_close(cross_entropy.logits(n, head), cap * mx.tanh((n @ dense.T) / cap))


def test_more_than_one_row_block_of_the_vocabulary(make_linear, noise, plain, assert_close, monkeypatch):
    monkeypatch.setattr(pieces, "BLOCK_ELEMENTS", 7 * HIDDEN)
    labels = np.array(LABELS["masked in the middle"])
    head, dense, _ = make_linear(VOCAB, HIDDEN, bits=4)
    n = noise(*labels.shape, HIDDEN)
    expected, expected_dn = reference(plain, n, labels, dense)
    loss, dn = cross_entropy.forward_backward(n, labels, Head.of(head))
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert_close(dn, expected_dn)


@pytest.mark.parametrize("dtype, bound", [(mx.bfloat16, 6e-3), (mx.float16, 8e-4)], ids=str)
@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
def test_half_precision_is_rounded_once(kernel, dtype, bound, labels, make_linear, noise, plain, assert_close):
    """The logits are float32 whatever the activations are: the loss is as exact as in float32."""
    head, dense, _ = make_linear(VOCAB, HIDDEN, bits=4, dtype=mx.float16, kernel=kernel)
    n = noise(*labels.shape, HIDDEN, dtype=dtype, scale=2.0)
    expected, expected_dn = reference(plain, n.astype(mx.float32), labels, dense)
    loss, dn = cross_entropy.forward_backward(n, labels, Head.of(head))
    assert (loss.dtype, dn.dtype) == (mx.float32, dtype)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert_close(dn, expected_dn, bound)


def test_micro_batches_add_up(make_linear, noise, assert_close):
    labels = np.array(LABELS["padded"])
    head, _, _ = make_linear(VOCAB, HIDDEN, bits=4)
    n = noise(*labels.shape, HIDDEN)
    loss, dn = cross_entropy.forward_backward(n, labels, Head.of(head))
    parts = [cross_entropy.forward_backward(n[i : i + 1], labels[i : i + 1], Head.of(head)) for i in range(2)]
    assert sum(part.item() for part, _ in parts) == pytest.approx(loss.item(), rel=1e-6)
    assert_close(mx.concatenate([part for _, part in parts]), dn, 1e-6)


def test_no_label_at_all_is_no_loss(make_linear, noise):
    """Such samples are not trained on, but if a batch of them came, nothing may turn into NaN or end the run."""
    head, _, _ = make_linear(VOCAB, HIDDEN, bits=4)
    loss, dn = cross_entropy.forward_backward(noise(2, 3, HIDDEN), np.full((2, 3), -1), Head.of(head))
    assert loss.item() == 0
    assert dn.shape == (2, 3, HIDDEN) and mx.abs(dn).max().item() == 0


@pytest.mark.parametrize("full", [False, True], ids=["", "full"])
@pytest.mark.parametrize("scale", [300.0, 1e4])
def test_huge_logits_stay_finite(scale, full, make_linear, noise):
    labels = np.array(LABELS["all rows"])
    head, dense, _ = make_linear(VOCAB, HIDDEN, bits=4)
    n = noise(*labels.shape, HIDDEN, scale=scale)
    loss, dn = cross_entropy.forward_backward(n, labels, Head.of(head), full)
    z = np.array(n @ dense.T).reshape(-1, VOCAB).astype(np.float64)
    top = z.max(axis=1, keepdims=True)
    expected = (np.log(np.exp(z - top).sum(axis=1)) + top[:, 0] - z[range(len(z)), labels.reshape(-1)]).sum()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert mx.isfinite(dn).all().item()


def test_each_gradient_row_of_the_logits_sums_to_nothing(make_linear, noise):
    """softmax − onehot sums to 0: with a head whose rows are all alike, no gradient is left."""
    _, dense, _ = make_linear(VOCAB, HIDDEN)
    alike = frozen_matmul.FrozenLinear(mx.broadcast_to(dense[:1], dense.shape))
    _, dn = cross_entropy.forward_backward(noise(1, 4, HIDDEN), np.array([[0, 5, 60, 3]]), Head.of(alike))
    assert mx.abs(dn).max().item() < 1e-6


@pytest.mark.parametrize("kernel", ["dequantize", "quantized"])
def test_logits(kernel, make_linear, noise, assert_close):
    head, dense, _ = make_linear(VOCAB, HIDDEN, bits=4, kernel=kernel, dtype=mx.bfloat16)
    n = noise(2, 3, HIDDEN, dtype=mx.bfloat16)
    z = cross_entropy.logits(n, Head.of(head))
    assert z.dtype == mx.float32
    assert_close(z, n.astype(mx.float32) @ dense.T)
