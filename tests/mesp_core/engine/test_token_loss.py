"""Final norm, head and loss for the labelled tokens alone: against MLX's autodiff of the textbook formula."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.engine import token_loss
from mesp_core.ops import cross_entropy
from mesp_core.ops.cross_entropy import Head

VOCAB, HIDDEN, EPS = 61, 32, 1e-5
LABELS = {
    "all": np.arange(14).reshape(2, 7) % VOCAB,
    "holes": np.array([[3, -1, 60, -1, 7, 7, -1], [-1, 2, 59, 4, -1, -1, -1]]),
    "none in a sample": np.array([[-1] * 7, [5, 4, -1, 2, 1, 0, 60]]),
    "the last alone": np.array([[-1] * 7, [-1] * 6 + [60]]),
}


@pytest.fixture(params=[384, 3, 1], ids=lambda tokens: f"{tokens} tokens at a time")
def tokens(request, monkeypatch):
    """5 of the labelled tokens leave an uneven last piece of 2, all 14 one of 2."""
    monkeypatch.setattr(token_loss, "TOKENS", request.param)


@pytest.fixture
def head(make_linear):
    """(Head, W in float32)."""
    linear, dense, _ = make_linear(VOCAB, HIDDEN, bits=4)
    return Head.of(linear), dense


def reference(plain, x, labels, norm, dense):
    return mx.value_and_grad(lambda x: plain.cross_entropy(plain.rms_norm(x, norm, EPS), labels, dense))(x)


@pytest.mark.parametrize("full", [False, True], ids=["chunked", "full"])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_loss_and_gradient(labels, full, tokens, head, noise, plain, assert_close):
    x, norm = noise(*labels.shape, HIDDEN, scale=2.0), 1 + noise(HIDDEN, seed=1, scale=0.3)
    expected, expected_dx = reference(plain, x, labels, norm, head[1])
    loss, dx = token_loss.loss_and_gradient(x, labels, norm, EPS, head[0], full)
    assert loss.shape == () and loss.dtype == mx.float32 and dx.shape == x.shape
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert_close(dx, expected_dx)
    assert not np.array(dx)[labels < 0].any()


@pytest.mark.parametrize("full", [False, True], ids=["chunked", "full"])
def test_rows_without_a_label_are_never_computed(full, tokens, head, noise, monkeypatch):
    """Not even read: what stands there may be no number at all."""
    rows, right = [], cross_entropy.forward_backward

    def counted(n, labels, *rest):
        rows.append(n.shape[0])
        return right(n, labels, *rest)

    monkeypatch.setattr(cross_entropy, "forward_backward", counted)
    labels = LABELS["holes"]
    x = mx.where(mx.array(labels >= 0)[..., None], noise(2, 7, HIDDEN), mx.nan)
    loss, dx = token_loss.loss_and_gradient(x, labels, mx.ones(HIDDEN), EPS, head[0], full)
    assert sum(rows) == 7
    assert mx.isfinite(loss).item() and mx.isfinite(dx).all().item()


@pytest.mark.parametrize("full", [False, True], ids=["chunked", "full"])
def test_they_take_no_memory_beside_their_gradient(full, make_linear, noise, exact_memory):
    """With a label for three of ten tokens, what is held beside x and ∂x is three tenths of what all tokens take."""
    tokens, vocab, hidden = 300, 4096, 32
    linear, _, _ = make_linear(vocab, hidden, bits=4)
    head, x, labels = Head.of(linear), noise(tokens, hidden), np.arange(tokens)

    def beside(share):
        mx.synchronize()
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        some = np.where(labels % 10 < 10 * share, labels, -1)
        _, dx = token_loss.loss_and_gradient(x, some, mx.ones(hidden), EPS, head, full)
        return mx.get_peak_memory() - held - dx.nbytes

    every = max(beside(1.0) for _ in range(3))
    few = max(beside(0.3) for _ in range(3))
    assert every >= tokens * vocab * 4  # the logits
    assert few <= 0.4 * every, (few, every)


def test_full_takes_all_labelled_tokens_at_once(head, noise, monkeypatch):
    rows, right = [], cross_entropy.forward_backward
    monkeypatch.setattr(cross_entropy, "forward_backward", lambda n, *rest: rows.append(n.shape[0]) or right(n, *rest))
    monkeypatch.setattr(token_loss, "TOKENS", 3)
    for full in (True, False):
        token_loss.loss_and_gradient(noise(2, 7, HIDDEN), LABELS["all"], mx.ones(HIDDEN), EPS, head[0], full)
    assert rows == [14, 3, 3, 3, 3, 2]


@pytest.mark.parametrize("full", [False, True], ids=["chunked", "full"])
def test_no_label_is_no_loss(full, head, noise):
    labels = np.full((2, 3), -1)
    loss, dx = token_loss.loss_and_gradient(noise(2, 3, HIDDEN), labels, mx.ones(HIDDEN), EPS, head[0], full)
    assert loss.item() == 0 and dx.shape == (2, 3, HIDDEN) and not np.array(dx).any()


@pytest.mark.parametrize("dtype, bound", [(mx.bfloat16, 2e-2), (mx.float16, 3e-3)], ids=str)
@pytest.mark.parametrize("labels", [LABELS["all"], LABELS["holes"]], ids=["all", "holes"])
def test_half_precision_stays(labels, dtype, bound, tokens, head, noise, plain, assert_close):
    x, norm = noise(2, 7, HIDDEN, dtype=dtype), (1 + noise(HIDDEN, seed=1, scale=0.3)).astype(dtype)
    expected, expected_dx = reference(plain, x.astype(mx.float32), labels, norm.astype(mx.float32), head[1])
    loss, dx = token_loss.loss_and_gradient(x, labels, norm, EPS, head[0])
    assert (loss.dtype, dx.dtype) == (mx.float32, dtype)
    assert loss.item() == pytest.approx(expected.item(), rel=bound)
    assert_close(dx, expected_dx, bound)


@pytest.mark.parametrize("full", [False, True], ids=["chunked", "full"])
def test_a_softcap_goes_through(full, tokens, head, noise, assert_close):
    """Gemma 2's c·tanh(z/c), small enough that every logit is bent."""
    cap, labels = 1.5, LABELS["holes"]
    x, norm = noise(2, 7, HIDDEN, scale=2.0), 1 + noise(HIDDEN, seed=1, scale=0.3)
    at, wanted = np.flatnonzero(labels >= 0), labels[labels >= 0]

    def plainly(x):
        rows = x.reshape(-1, HIDDEN)[mx.array(at)]
        z = (rows / mx.sqrt((rows * rows).mean(axis=-1, keepdims=True) + EPS) * norm) @ head[1].T
        z = cap * mx.tanh(z / cap)
        return (mx.log(mx.exp(z).sum(axis=-1)) - z[mx.arange(len(at)), mx.array(wanted)]).sum()

    expected, expected_dx = mx.value_and_grad(plainly)(x)
    loss, dx = token_loss.loss_and_gradient(x, labels, norm, EPS, replace(head[0], softcap=cap), full)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert_close(dx, expected_dx)
