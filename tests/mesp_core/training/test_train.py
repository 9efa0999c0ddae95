"""The step loop, in this process: schedules, accumulation, optimizers, dtypes, and what happens when a run diverges."""

import gc
import json
import math
import time
from itertools import islice, repeat

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch, batches
from mesp_core.engine.autodiff import Autodiff
from mesp_core.engine.method import Method
from mesp_core.errors import MespError
from mesp_core.files.bundled import bundled_path
from mesp_core.machine.memory import MB
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.training.train import PhasePeaks, train

LENGTHS = (5, 12, 33, 20)  # ids of each sample


@pytest.fixture(autouse=True, scope="module")
def no_buffer_cache():
    """As in the worker."""
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@pytest.fixture(scope="module")
def tiny():
    return open_checkpoint(bundled_path("tiny"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Four samples of different lengths."""
    from mesp_core.data.tokenise import tokenise

    file = tmp_path_factory.mktemp("train") / "tokens.jsonl"
    rng = np.random.default_rng(0)
    rows = [{"tokens": rng.integers(3, 2048, length).tolist()} for length in LENGTHS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tokenise(file, bundled_path("tiny"), seq_len=32, loss_on="all")


class Slope(Method):
    """A method with gradients of ones and a loss that is told."""

    def __init__(self, losses=None, gradient=1.0):
        self.losses, self.gradient, self.calls = losses, gradient, 0

    def backpropagate(self, adapters, batch, weight, to):
        self.calls += 1
        to.enter("all")
        to.loss(mx.array((1.0 if self.losses is None else self.losses[self.calls - 1]) * batch.tokens))
        gradients = {
            path: {part: mx.full(array.shape, self.gradient, array.dtype) for part, array in pair.items()}
            for path, pair in adapters.items()
        }
        mx.eval(gradients)
        to.gradients(gradients)


def one_pair(value=0.0):
    return {"model.layers.0.mlp.up_proj": {"lora_a": mx.full((3, 2), value), "lora_b": mx.full((2, 3), value)}}


def copied(adapters):
    return {(path, part): np.array(array) for path, pair in adapters.items() for part, array in pair.items()}


def any_batches():
    while True:
        yield Batch(np.zeros((1, 4), np.int32), np.array([[1, 1, 1, -1]], np.int32), 3)


def run(config, method, adapters, source=None, until=None):
    """Train; the StepResults and the adapters after each step."""
    results, after = [], []

    def on_step(result):
        results.append(result)
        after.append(copied(adapters))
        return result.step != until

    done = train(config, method, adapters, source or any_batches(), on_step)
    assert done == len(results)
    return results, after


def expected_rates(schedule, warmup, steps, rate):
    left = steps - warmup
    for step in range(steps):
        if step < warmup:
            yield rate * (step + 1) / (warmup + 1)
            continue
        along = (step - warmup) / left
        yield rate * {"constant": 1.0, "linear": 1 - along, "cosine": (1 + math.cos(math.pi * along)) / 2}[schedule]


class TestSchedules:
    @pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
    @pytest.mark.parametrize("warmup", [0, 1, 3])
    def test_the_rate_of_each_step_is_the_schedules_and_is_the_one_used(self, schedule, warmup):
        config = RunConfig(
            steps=10, warmup_steps=warmup, schedule=schedule, learning_rate=0.4, optimizer="sgd", weight_decay=0.0
        )
        results, after = run(config, Slope(), one_pair())
        expected = list(expected_rates(schedule, warmup, 10, 0.4))
        assert [result.learning_rate for result in results] == pytest.approx(expected, abs=1e-6)
        moved = [-next(iter(adapters.values()))[0, 0] for adapters in after]
        assert moved == pytest.approx(np.cumsum(expected).tolist(), abs=1e-5)
        assert min(expected) > 0  # no step is thrown away

    def test_a_step_says_what_it_was(self):
        config = RunConfig(steps=2, grad_accumulation=3, optimizer="sgd")
        method = Slope()
        results, _ = run(config, method, one_pair())
        assert method.calls == 6
        for number, result in enumerate(results, 1):
            assert (result.step, result.tokens, result.trained_tokens) == (number, 12, 9)
            assert result.loss == pytest.approx(1.0) and result.seconds > 0
            assert result.gradient_norm == pytest.approx(3 * math.sqrt(12))  # three micro-batches of twelve ones
            assert set(result.peak_by_phase_mb) == {"all"}
            assert result.peak_mb == max(result.peak_by_phase_mb.values())


class TestAccumulation:
    def config(self, **changes):
        settings = {"rank": 4, "seq_len": 32, "optimizer": "sgd", "learning_rate": 0.5, "steps": 1} | changes
        return RunConfig(**settings)

    def train(self, tiny, tokens, **changes):
        config = self.config(**changes)
        adapters = initial_adapters(tiny.architecture, config, b_scale=0.01)
        method, _ = build_method(config, tiny, adapters)
        results, after = run(config, method, adapters, batches(tokens, config.batch_size, config.seed))
        return [result.loss for result in results], after[-1], results

    @pytest.mark.parametrize("method", ["mesp", "autodiff"])
    def test_four_micro_batches_equal_a_batch_of_four(self, tiny, tokens, method):
        [whole], at_once, result = self.train(tiny, tokens, method=method, batch_size=4)
        [summed], in_turn, results = self.train(tiny, tokens, method=method, grad_accumulation=4)
        assert summed == pytest.approx(whole, rel=1e-5)
        assert result[0].trained_tokens == results[0].trained_tokens == sum(LENGTHS) - 4
        start = copied(initial_adapters(tiny.architecture, self.config(), b_scale=0.01))
        for key, value in at_once.items():
            change = np.linalg.norm(value - start[key])
            assert change > 0
            assert np.linalg.norm(in_turn[key] - value) <= 1e-5 * change + 1e-7 * np.linalg.norm(value), key

    def test_tokens_weigh_the_same_and_not_samples(self, tiny, tokens):
        """The mean over tokens is another number than the mean over samples here, so the test above can fail."""
        [loss], _, _ = self.train(tiny, tokens, grad_accumulation=4)
        single, _, results = self.train(tiny, tokens, steps=4, learning_rate=1e-12)
        weights = [result.trained_tokens for result in results]
        assert sorted(weights) == sorted(length - 1 for length in LENGTHS)
        assert loss == pytest.approx(np.average(single, weights=weights), rel=1e-5)
        assert abs(loss - np.mean(single)) > 1e-3


class TestRepeatability:
    def losses(self, tiny, tokens, **changes):
        config = RunConfig(rank=4, seq_len=32, steps=4, **changes)
        adapters = initial_adapters(tiny.architecture, config)
        method, _ = build_method(config, tiny, adapters)
        results, _ = run(config, method, adapters, batches(tokens, 1, config.seed))
        return [result.loss for result in results]

    def test_the_seed_decides(self, tiny, tokens):
        first = self.losses(tiny, tokens, seed=7)
        assert self.losses(tiny, tokens, seed=7) == first
        assert self.losses(tiny, tokens, seed=8) != first


OPTIMIZERS = {
    "sgd": lambda config: optim.SGD(config.learning_rate),
    "adam": lambda config: optim.Adam(config.learning_rate),
    "adamw": lambda config: optim.AdamW(config.learning_rate, weight_decay=config.weight_decay),
}


class TestOptimizers:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_training_is_mlx_optimizers_on_the_gradients_of_autodiff(self, tiny, tokens, name):
        config = RunConfig(
            method="autodiff", rank=4, seq_len=32, steps=3, optimizer=name, learning_rate=0.01, weight_decay=0.3
        )
        ours = initial_adapters(tiny.architecture, config)
        method, _ = build_method(config, tiny, ours)
        run(config, method, ours, batches(tokens, 1, 0))

        theirs = initial_adapters(tiny.architecture, config)
        judge = Autodiff(tiny.folder, theirs, config.scale, mx.float32)
        optimizer = OPTIMIZERS[name](config)
        for _, batch in zip(range(3), batches(tokens, 1, 0), strict=False):
            _, gradients = judge.loss_and_gradients(theirs, batch, 1 / batch.tokens)
            theirs = optimizer.apply_gradients(gradients, theirs)
            mx.eval(theirs)
        start = copied(initial_adapters(tiny.architecture, config))
        for key, value in copied(ours).items():
            expected = copied(theirs)[key]
            assert np.linalg.norm(expected - start[key]) > 0
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7, err_msg=str(key))

    def test_weight_decay_is_adamws_alone(self):
        changed = {}
        for name in OPTIMIZERS:
            for decay in (0.0, 0.5):
                config = RunConfig(steps=2, optimizer=name, weight_decay=decay, learning_rate=0.1)
                changed[name, decay] = next(iter(run(config, Slope(), one_pair(1.0))[1][-1].values()))[0, 0]
        assert changed["sgd", 0.0] == changed["sgd", 0.5] and changed["adam", 0.0] == changed["adam", 0.5]
        assert changed["adamw", 0.5] < changed["adamw", 0.0]


class TestStoppingAndDiverging:
    def test_on_step_ends_it(self):
        method = Slope()
        results, _ = run(RunConfig(steps=10), method, one_pair(), until=3)
        assert len(results) == 3 and method.calls == 3

    def test_it_may_be_kept_from_a_step_and_waiting_is_not_timed(self):
        method, seconds = Slope(), []

        def may_begin(step):
            time.sleep(0.2)
            return step < 3

        def on_step(result):
            seconds.append(result.seconds)
            return True

        assert train(RunConfig(steps=10), method, one_pair(), any_batches(), on_step, may_begin) == 2
        assert method.calls == len(seconds) == 2 and max(seconds) < 0.2

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_loss_that_is_no_number_is_refused_before_it_does_harm(self, bad):
        adapters, told = one_pair(), []
        config = RunConfig(steps=10, optimizer="sgd", learning_rate=0.25, alpha=3.0)

        def on_step(result):
            told.append(result.step)
            return True

        with pytest.raises(MespError) as raised:
            train(config, Slope([1.0, 1.0, bad, 1.0]), adapters, any_batches(), on_step)
        message = str(raised.value)
        assert "step 3" in message and "learning_rate (now 0.25)" in message and "alpha (now 3)" in message
        assert told == [1, 2]
        for value in copied(adapters).values():
            assert value == pytest.approx(-0.5)

    def test_gradients_that_are_no_numbers_are_refused_too(self):
        """Half-precision activations can overflow in the backward while the loss is still a number."""
        adapters = one_pair(1.0)
        with pytest.raises(MespError):
            train(RunConfig(steps=1), Slope(gradient=math.nan), adapters, any_batches(), lambda result: True)
        assert all(np.isfinite(value).all() for value in copied(adapters).values())


class TestDtypes:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
    def test_bfloat16_adapters_stay_bfloat16(self, tiny, tokens, optimizer):
        config = RunConfig(
            rank=4,
            seq_len=32,
            steps=2,
            optimizer=optimizer,
            adapter_dtype="bfloat16",
            learning_rate=0.01,
            schedule="cosine",
            warmup_steps=1,
            grad_accumulation=2,
        )
        adapters = initial_adapters(tiny.architecture, config)
        before = [mx.array(pair["lora_b"]) for pair in adapters.values()]
        method, _ = build_method(config, tiny, adapters)
        losses = []

        def on_step(result):
            losses.append(result.loss)
            assert {array.dtype for pair in adapters.values() for array in pair.values()} == {mx.bfloat16}
            return True

        train(config, method, adapters, batches(tokens, 1, 0), on_step)
        assert all(math.isfinite(loss) for loss in losses)
        assert all(mx.any(pair["lora_b"] != b).item() for pair, b in zip(adapters.values(), before, strict=True))

    def test_half_precision_activations_train(self, tiny, tokens):
        losses = {}
        for dtype in ("float32", "bfloat16", "float16"):
            config = RunConfig(rank=4, seq_len=32, steps=3, dtype=dtype, learning_rate=1e-3)
            adapters = initial_adapters(tiny.architecture, config)
            method, _ = build_method(config, tiny, adapters)
            [sample] = [batch for batch in islice(batches(tokens, 1, 0), 4) if batch.tokens == min(LENGTHS) - 1]
            results, after = run(config, method, adapters, repeat(sample))
            assert all(np.isfinite(value).all() for value in after[-1].values())
            losses[dtype] = [result.loss for result in results]
        for dtype in ("bfloat16", "float16"):
            assert losses[dtype] == pytest.approx(losses["float32"], rel=0.02)
            assert losses[dtype] != losses["float32"]
            assert losses[dtype][-1] < losses[dtype][0]


class TestWhatIsHeld:
    @pytest.mark.parametrize("optimizer, copies", [("sgd", 1), ("adam", 3), ("adamw", 3)])
    def test_between_steps_adapters_and_moments_and_no_more(self, optimizer, copies):
        gc.collect()
        size = 2 * 1000 * 1000 * 4
        before = mx.get_active_memory()
        adapters = {"model.layers.0.mlp.up_proj": {part: mx.ones((1000, 1000)) for part in ("lora_a", "lora_b")}}
        mx.eval(adapters)
        held = []

        def on_step(result):
            held.append((mx.get_active_memory() - before) / size)
            return True

        config = RunConfig(steps=3, optimizer=optimizer, grad_accumulation=2)
        train(config, Slope(), adapters, any_batches(), on_step)
        assert held == pytest.approx([copies] * 3, abs=0.1)

    def test_the_model_of_autodiff_holds_no_older_adapters(self, tiny, tokens):
        config = RunConfig(method="autodiff", rank=4, seq_len=32, steps=2)
        adapters = initial_adapters(tiny.architecture, config)
        method, _ = build_method(config, tiny, adapters)
        run(config, method, adapters, batches(tokens, 1, 0))
        for name, projection in method.model.layers[0].self_attn.items():
            if name.endswith("_proj"):
                assert projection.lora_b is adapters[f"model.layers.0.self_attn.{name}"]["lora_b"]


class TestPhasePeaks:
    def test_a_phase_counts_once_at_its_largest(self):
        gc.collect()  # what other tests held would count in the first phase
        peaks = PhasePeaks()
        for megabytes in (8, 2):
            peaks.enter("large")
            array = mx.zeros((megabytes, int(MB) // 4))
            mx.eval(array)
            array = None
            peaks.enter("small")
        peaks.enter(None)
        assert list(peaks.megabytes) == ["large", "small"]
        assert peaks.megabytes["large"] - peaks.megabytes["small"] == pytest.approx(8, abs=1.5)
