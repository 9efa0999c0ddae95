"""lean's gradients against mlx-lm's autodiff: with every option, whatever is kept, in whatever pieces."""

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.data.batches import Batch
from mesp_core.engine.autodiff import Autodiff
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.ops import attention, exponential, pieces

OTHERS = ("qwen2", "llama", "float")
DISK = "inputs=disk:tmpfs"  # wherever the tests' folder is
OPTIONS = {
    "lean": "lean",
    "resident": "lean:weights=resident",
    "mapped": "lean:weights=mapped",
    "full loss": "lean:loss=full",
    "disk": f"lean:{DISK}",
    "all": f"lean:weights=resident:loss=full:{DISK}",
    "all, mapped": f"lean:weights=mapped:loss=full:{DISK}",
    "mesp, all": f"mesp:weights=resident:loss=full:{DISK}",
    "mebp, all": f"mebp:weights=resident:loss=full:{DISK}",
}
KEEPS = {
    "attention": {"attention": 3},
    "attention of the last": {"attention": 1},
    "gate": {"gate": 3},
    "up of the last two": {"up": 2},
    "sigma": {"sigma": 3},
    "everything": {"attention": 3, "gate": 3, "up": 3, "sigma": 3},
    "unequal": {"attention": 1, "gate": 2, "up": 1, "sigma": 3},
    "one group at a time": {"part_elements": 32 * 64},
    "two groups and a bit": {"part_elements": 64 * 64 + 700, "gate": 1},
    "all features at once": {"part_elements": 10**9, "up": 3, "sigma": 1},
}


@pytest.fixture
def odd(make_batch):
    """Two samples of 37 and 21 tokens with holes in their labels: 74 rows, or five pieces of 16 the last of which is 10."""
    return make_batch(37, 21)


class TestOptions:
    @pytest.mark.parametrize("method", OPTIONS.values(), ids=OPTIONS)
    def test_gradients_are_autodiffs(self, method, model_of, odd, judged, built, known, assert_same):
        model = model_of("mixed")
        found = built(model, method).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)
        if "mesp" not in known:
            known["mesp"] = built(model, "mesp").loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, known["mesp"])  # the frozen matmul is the same one: losses agree to 1e-6

    @pytest.mark.parametrize("name", OTHERS)
    @pytest.mark.parametrize("option", ["lean", "all"])
    def test_on_other_models(self, option, name, model_of, odd, judged, built, assert_same):
        model = model_of(name)
        found = built(model, OPTIONS[option]).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)

    @pytest.mark.parametrize("name", ["mixed", "float"])
    @pytest.mark.parametrize("method", ["lean", "lean:weights=resident:loss=full"])
    def test_with_the_quantised_kernel(self, method, name, model_of, odd, judged, built, assert_same):
        model = model_of(name)
        engine = built(model, method, kernel="quantized")
        used = {linear.kernel for linear in engine.weights.block(0).linears.values()}
        assert used == {"quantized"}
        found = engine.loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)

    @pytest.mark.parametrize("lengths", [(1,), (3,), (33,), (5, 1), (1, 13, 8)], ids=str)
    def test_short_and_odd_lengths(self, lengths, model_of, make_batch, judged, built, assert_same, assert_close):
        model, batch = model_of("llama"), make_batch(*lengths, holes=False)
        expected = judged(model, batch)
        found = built(model, "lean").loss_and_gradients(model.adapters, batch, 1 / batch.tokens)
        if max(lengths) > 1:
            assert_same(found, expected, loss_bound=2e-6)
            return
        assert found[0].item() == pytest.approx(expected[0].item(), rel=2e-6)
        for path, pair in expected[1].items():  # a token that sees itself alone: nothing depends on q and k
            for part, gradient in pair.items():
                if path.endswith(("q_proj", "k_proj")):
                    assert mx.abs(found[1][path][part] - gradient).max().item() <= 1e-6, path
                else:
                    assert_close(found[1][path][part], gradient, name=path)

    def test_lengths_left_out_change_nothing(self, model_of, odd, built, assert_same):
        """Padding is then computed like everything else; the causal mask hides it."""
        model = model_of("mixed")
        engine = built(model, "lean")
        without = Batch(odd.inputs, odd.labels, odd.tokens)
        results = [engine.loss_and_gradients(model.adapters, batch, 0.1) for batch in (odd, without)]
        assert_same(*results)

    def test_what_stands_in_the_padding_changes_nothing(self, model_of, odd, built, assert_same):
        model = model_of("mixed")
        engine = built(model, "lean")
        inputs = odd.inputs.copy()
        inputs[1, 21:] = np.arange(16)
        other = Batch(inputs, odd.labels, odd.tokens, odd.lengths)
        results = [engine.loss_and_gradients(model.adapters, batch, 0.1) for batch in (odd, other)]
        assert_same(*results)


class TestKept:
    @pytest.mark.parametrize("pieces", [False, True], ids=["at once", "in small pieces"])
    @pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
    def test_gradients_are_autodiffs(self, keep, pieces, model_of, odd, judged, lean_with, assert_same, request):
        if pieces:
            request.getfixturevalue("in_small_pieces")
        model = model_of("mixed")
        found = lean_with(model, **keep).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)

    def test_as_few_features_at_a_time_as_can_be(self, model_of, odd, judged, lean_with, assert_same):
        """A group of them, or where `down` is not quantised a single one."""
        model = model_of("mixed")
        found = lean_with(model, part_elements=1, gate=2).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)

    @pytest.mark.parametrize("keep", ["everything", "two groups and a bit"])
    def test_with_the_quantised_kernel(
        self, keep, model_of, odd, judged, lean_with, assert_same, in_small_pieces, monkeypatch
    ):
        monkeypatch.setattr(pieces, "MLP_FEATURES", 64)
        model = model_of("mixed")
        engine = lean_with(model, kernel="quantized", **KEEPS[keep])
        assert_same(engine.loss_and_gradients(model.adapters, odd, 1 / odd.tokens), judged(model, odd), loss_bound=2e-6)

    def test_what_is_kept_is_not_computed_again(self, model_of, odd, lean_with, monkeypatch):
        model, calls = model_of("mixed"), []

        def counted(module, name):
            right = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *arguments, **named: calls.append(name) or right(*arguments, **named))

        counted(attention, "tiled_forward")
        counted(exponential, "sigmoid")

        def made(**keep):
            calls.clear()
            lean_with(model, part_elements=10**9, **keep).loss_and_gradients(model.adapters, odd, 1.0)
            return calls.count("tiled_forward"), calls.count("sigmoid")

        assert made() == (6, 6)  # three blocks, forward and again
        assert made(attention=2) == (4, 6)
        assert made(gate=3, up=3) == (6, 6)
        assert made(sigma=2) == (6, 4)
        assert made(attention=3, gate=3, up=3, sigma=3) == (3, 3)

    def test_a_step_that_breaks_off_leaves_nothing_to_the_next(self, model_of, odd, make_batch, lean_with, assert_same):
        """Broken in the loss and in the backward; the next batch has another length."""

        class Breaks:
            def __init__(self, where):
                self.where = where

            def enter(self, phase):
                if phase == self.where:
                    raise ZeroDivisionError

            def loss(self, loss):
                pass

            def gradients(self, part):
                if self.where == "gradients":
                    raise ZeroDivisionError

        model = model_of("mixed")
        engine = lean_with(model, **KEEPS["everything"])
        expected = engine.loss_and_gradients(model.adapters, odd, 0.1)
        for where in ("loss", "backward", "gradients"):
            with pytest.raises(ZeroDivisionError):
                engine.backpropagate(model.adapters, make_batch(50), 1.0, Breaks(where))
            assert assert_same(engine.loss_and_gradients(model.adapters, odd, 0.1), expected) == 0
        engine.logits(model.adapters, odd.inputs)  # nor does what only goes forward
        assert assert_same(engine.loss_and_gradients(model.adapters, odd, 0.1), expected) == 0


class TestSubsets:
    @pytest.mark.parametrize("missing", PROJECTIONS)
    def test_a_projection_without_an_adapter(self, missing, model_of, odd, lean_with, built, assert_same, in_small_pieces):
        model = model_of("mixed", target_modules=tuple(name for name in PROJECTIONS if name != missing))
        expected = built(model, "mebp").loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert len(expected[1]) == 18
        engine = lean_with(model, attention=1, up=2, sigma=1)
        assert_same(engine.loss_and_gradients(model.adapters, odd, 1 / odd.tokens), expected)

    @pytest.mark.parametrize("names", [("q_proj",), ("down_proj",), ("k_proj", "up_proj")], ids=str)
    def test_few_are_autodiffs(self, names, model_of, odd, judged, lean_with, assert_same, in_small_pieces):
        model = model_of("mixed", target_modules=names)
        found = lean_with(model).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, judged(model, odd), loss_bound=2e-6)


class TestLabels:
    @pytest.mark.parametrize("method", ["lean", "mesp", "mebp", "lean:loss=full"])
    def test_no_label_at_all_is_no_gradient(self, method, model_of, odd, built):
        """Such samples are not trained on, but if a batch of them came, nothing may turn into NaN or end the run."""
        model = model_of("mixed")
        nothing = Batch(odd.inputs, np.full_like(odd.labels, -1), 0, odd.lengths)
        loss, tree = built(model, method).loss_and_gradients(model.adapters, nothing, 1.0)
        assert loss.item() == 0 and set(tree) == set(model.adapters)
        for path, pair in tree.items():
            for part, gradient in pair.items():
                assert gradient.shape == model.adapters[path][part].shape
                assert mx.abs(gradient).max().item() == 0, path

    @pytest.mark.parametrize("method", ["lean", "lean:loss=full"])
    def test_one_label_in_a_batch(self, method, model_of, odd, judged, built, assert_same, in_small_pieces):
        model = model_of("llama")
        labels = np.full_like(odd.labels, -1)
        labels[1, 17] = 299
        single = Batch(odd.inputs, labels, 1, odd.lengths)
        found = built(model, method).loss_and_gradients(model.adapters, single, 1.0)
        assert_same(found, judged(model, single), loss_bound=2e-6)


class TestReceiving:
    @pytest.mark.parametrize("method", ["lean", "mesp", "mesp-store-h", "mebp"])
    def test_adapters_may_be_changed_as_their_gradients_come(self, method, model_of, odd, built, assert_same):
        """Last block first, each adapter once; what is done to it then changes no gradient that is still to come."""
        model = model_of("mixed")
        engine = built(model, method)
        expected = engine.loss_and_gradients(model.adapters, odd, 0.1)
        adapters = {path: dict(pair) for path, pair in model.adapters.items()}
        heard, tree = [], {}

        class Spoils:
            def enter(self, phase):
                heard.append(phase)

            def loss(self, loss):
                self.total = loss
                heard.append("told")

            def gradients(self, part):
                assert not tree.keys() & part.keys()
                heard.append({int(path.split(".")[2]) for path in part})
                tree.update({path: dict(pair) for path, pair in part.items()})
                for path in part:
                    adapters[path] = {name: mx.full(array.shape, mx.nan) for name, array in adapters[path].items()}
                part.clear()

        receiver = Spoils()
        engine.backpropagate(adapters, odd, 0.1, receiver)
        assert heard == ["forward", "loss", "told", "backward", {2}, {1}, {0}]
        assert assert_same((receiver.total, tree), expected) == 0


class TestBfloat16:
    """bfloat16 activations against the float32 gradient: the whole within 10 %, any tensor within 15 %, the loss 0.2 %.

    That is twice what was measured (4.1, 6.1 and 0.09 %) on random weights, where nothing is learnt and most of a gradient
    is noise that cancels. mlx-lm's own bfloat16 gradient is 10 % off as a whole, and 5 % with its matrices dequantised.
    """

    @pytest.mark.parametrize("keep", [{}, KEEPS["everything"]], ids=["nothing kept", "everything kept"])
    @pytest.mark.parametrize("name", ["qwen2", "mixed"])
    def test_within_the_rounding(self, name, keep, model_of, odd, judged, lean_with, assert_same, relative_error):
        model = model_of(name)
        (loss, expected) = judged(model, odd)
        found = lean_with(model, mx.bfloat16, **keep).loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        assert_same(found, (loss, expected), bound=0.15, loss_bound=2e-3)

        def whole(tree):
            assert {array.dtype for pair in tree.values() for array in pair.values()} == {mx.float32}  # the adapters'
            return mx.concatenate([tree[path][part].flatten() for path in expected for part in expected[path]])

        judge = Autodiff(model.checkpoint.folder, model.adapters, model.scale, mx.bfloat16)
        _, peer = judge.loss_and_gradients(model.adapters, odd, 1 / odd.tokens)
        error, of_peer = (relative_error(whole(tree), whole(expected)) for tree in (found[1], peer))
        assert error <= 0.1 and error <= of_peer

    def test_adapters_in_bfloat16_lose_no_more_than_their_own_rounding(self, model_of, odd, lean_with, assert_same):
        """Their products and sums are float32: only what is handed over is rounded, to 2⁻⁹."""
        model = model_of("mixed")
        rounded = {path: {k: a.astype(mx.bfloat16) for k, a in pair.items()} for path, pair in model.adapters.items()}
        same = {path: {k: a.astype(mx.float32) for k, a in pair.items()} for path, pair in rounded.items()}
        engine = lean_with(model, sigma=1)
        expected, found = (engine.loss_and_gradients(adapters, odd, 1.0) for adapters in (same, rounded))
        assert {array.dtype for pair in found[1].values() for array in pair.values()} == {mx.bfloat16}
        assert_same(found, expected, bound=2e-3)
