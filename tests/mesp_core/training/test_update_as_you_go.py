"""Each part of a step's gradients is applied when it is there: when, with what memory, and what an error leaves behind."""

import gc
import json
import math
import threading

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.data.batches import Batch
from mesp_core.data.tokenise import tokenise
from mesp_core.engine.method import Method
from mesp_core.errors import CheckpointError, MespError
from mesp_core.files.bundled import bundled_path
from mesp_core.machine.memory import MB
from mesp_core.settings.run_config import RunConfig
from mesp_core.training import job_run, worker
from mesp_core.training.train import make_optimizer, train

BLOCKS = 8
PATHS = [f"model.layers.{layer}.mlp.up_proj" for layer in range(BLOCKS)]
ONE_BY_ONE = list(range(1, BLOCKS + 1))


@pytest.fixture(autouse=True, scope="module")
def no_buffer_cache():
    """As in the worker."""
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


class Pull(Method):
    """Pulls every adapter towards the batch's first token: loss ½·Σ(a − token)², a part for each module, last one first.

    `whole` hands over one part with everything; `bad` gives the loss or the gradient of one module NaN at a call.
    With `watch`, `seen` holds for each call how many of the adapters had been changed once each part was handed over.
    """

    def __init__(self, whole=False, bad=None, watch=False):
        self.whole, self.bad, self.watch, self.calls, self.seen = whole, bad, watch, 0, []

    def backpropagate(self, adapters, batch, weight, to):
        self.calls += 1
        to.enter("forward")
        target = float(batch.inputs.flat[0])
        start = {path: pair["lora_a"] for path, pair in adapters.items()} if self.watch else {}
        loss = sum(0.5 * (array - target).square().sum().item() for pair in adapters.values() for array in pair.values())
        to.loss(mx.array(math.nan if self.bad == (self.calls, "loss") else loss))
        to.enter("backward")
        counts = []
        for paths in [list(adapters)] if self.whole else [[path] for path in reversed(adapters)]:
            to.gradients({path: self._gradients(adapters[path], path, target, weight) for path in paths})
            counts.append(sum(adapters[path]["lora_a"] is not array for path, array in start.items()))
        self.seen.append(counts)

    def _gradients(self, pair, path, target, weight):
        factor = math.nan if self.bad == (self.calls, path) else weight
        gradients = {name: factor * (array - target) for name, array in pair.items()}
        mx.eval(gradients)
        return gradients


def some_adapters(rows=3, columns=2):
    rng = np.random.default_rng(0)
    shapes = {"lora_a": (rows, columns), "lora_b": (columns, rows)}
    tree = {
        path: {name: mx.array(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()} for path in PATHS
    }
    mx.eval(tree)
    return tree


def some_batches():
    number = 0
    while True:
        yield Batch(np.array([[number % 5, 7]], np.int32), np.array([[7, 7]], np.int32), 2)
        number += 1


def copied(adapters):
    return {(path, name): np.array(array) for path, pair in adapters.items() for name, array in pair.items()}


def run(adapters, method=None, **settings):
    """Train with SGD at 0.1 unless told otherwise; the StepResults."""
    results = []
    config = RunConfig(**({"optimizer": "sgd", "learning_rate": 0.1, "steps": 1} | settings))
    train(config, method or Pull(), adapters, some_batches(), lambda result: not results.append(result))
    return results


def assert_same_bits(one, other):
    for key, value in copied(one).items():
        np.testing.assert_array_equal(copied(other)[key], value, err_msg=str(key))


class TestWhen:
    def test_each_part_is_applied_before_the_next_is_made(self):
        method = Pull(watch=True)
        [result] = run(some_adapters(), method)
        assert method.seen == [ONE_BY_ONE]
        assert list(result.peak_by_phase_mb) == ["forward", "backward"]

    def test_with_accumulation_at_the_last_micro_batch(self):
        method = Pull(watch=True)
        [result] = run(some_adapters(), method, grad_accumulation=3)
        assert method.seen == [[0] * BLOCKS, [0] * BLOCKS, ONE_BY_ONE]
        assert list(result.peak_by_phase_mb) == ["forward", "backward"]

    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_with_clipping_after_the_last_part(self, accumulation):
        method, adapters = Pull(watch=True), some_adapters()
        before = copied(adapters)
        [result] = run(adapters, method, grad_accumulation=accumulation, max_grad_norm=0.5)
        assert method.seen == [[0] * BLOCKS] * accumulation
        assert all((value != before[key]).all() for key, value in copied(adapters).items())
        assert list(result.peak_by_phase_mb) == ["forward", "backward", "update"]


class TestWhat:
    @pytest.mark.parametrize("accumulation", [1, 3])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
    def test_it_is_the_optimizer_on_everything_at_once(self, optimizer, accumulation):
        settings = {"optimizer": optimizer, "schedule": "cosine", "warmup_steps": 2, "steps": 5, "weight_decay": 0.3}
        ours, theirs = some_adapters(), some_adapters()
        results = run(ours, grad_accumulation=accumulation, **settings)

        judge = make_optimizer(RunConfig(learning_rate=0.1, **settings))
        batches, method = some_batches(), Pull()
        for result in results:
            gradients, loss = None, 0.0
            for _ in range(accumulation):
                more_loss, more = method.loss_and_gradients(theirs, next(batches), 1 / (2 * accumulation))
                loss += more_loss.item()
                for path, pair in more.items() if gradients else ():
                    pair.update({name: gradients[path][name] + pair[name] for name in pair})
                gradients = more
            theirs = judge.apply_gradients(gradients, theirs)
            mx.eval(theirs, judge.state)
            assert result.loss == loss / (2 * accumulation)
            assert result.learning_rate == float(judge.learning_rate)
            norm = math.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in copied(gradients).values()))
            assert result.gradient_norm == pytest.approx(norm, rel=1e-6)
        assert_same_bits(theirs, ours)

    def test_a_clipped_step_is_as_long_as_allowed_and_points_the_same_way(self):
        for accumulation in (1, 3):
            start, free, clipped = some_adapters(), some_adapters(), some_adapters()
            [unclipped] = run(free, grad_accumulation=accumulation)
            [result] = run(clipped, grad_accumulation=accumulation, max_grad_norm=0.25)
            assert result.gradient_norm == pytest.approx(unclipped.gradient_norm) and result.gradient_norm > 0.5
            start, free, clipped = (np.concatenate([v.ravel() for v in copied(t).values()]) for t in (start, free, clipped))
            assert np.linalg.norm(clipped - start) == pytest.approx(0.1 * 0.25, rel=1e-5)
            np.testing.assert_allclose(clipped - start, (free - start) * 0.25 / result.gradient_norm, atol=1e-6)

    def test_a_gradient_within_the_limit_is_left_alone(self):
        free, clipped = some_adapters(), some_adapters()
        run(free, steps=3)
        run(clipped, steps=3, max_grad_norm=1e6)
        assert_same_bits(free, clipped)

    def test_no_gradient_at_all_is_no_division_by_zero(self):
        adapters = {path: {name: mx.zeros((2, 2)) for name in ("lora_a", "lora_b")} for path in PATHS}
        [result] = run(adapters, max_grad_norm=1.0)  # the first batch pulls towards 0, where they are
        assert result.gradient_norm == 0 and not any(value.any() for value in copied(adapters).values())


class TestMemory:
    ROWS, COLUMNS = 512, 64
    PART_MB = 2 * ROWS * COLUMNS * 4 / MB  # of one module's two matrices

    def peak(self, **settings):
        """MB above what was held before there were adapters, in the worst phase."""
        gc.collect()
        before = mx.get_active_memory() / MB
        results = run(some_adapters(self.ROWS, self.COLUMNS), steps=3, **settings)
        return max(result.peak_mb for result in results) - before

    @pytest.mark.parametrize("optimizer, copies", [("sgd", 1), ("adamw", 3)])
    def test_gradients_of_the_whole_model_never_coexist(self, optimizer, copies):
        """Beside adapters and moments there are one module's gradients, and what its update needs."""
        at_once = self.peak(optimizer=optimizer, method=Pull(whole=True))
        as_you_go = self.peak(optimizer=optimizer)
        held = copies * BLOCKS * self.PART_MB
        assert held < as_you_go < held + BLOCKS * self.PART_MB <= at_once

    @pytest.mark.parametrize("settings", [{"grad_accumulation": 3}, {"max_grad_norm": 0.5}], ids=["sums", "clipping"])
    def test_what_accumulation_and_clipping_cost_is_one_copy(self, settings):
        copies = 2 * BLOCKS * self.PART_MB
        assert copies <= self.peak(**settings) <= copies + 3 * self.PART_MB

    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    @pytest.mark.parametrize(
        "settings", [{}, {"grad_accumulation": 2}, {"max_grad_norm": 0.5}], ids=["", "sums", "clipping"]
    )
    def test_nothing_grows_from_step_to_step(self, optimizer, settings):
        held, adapters = [], some_adapters()

        def on_step(result):
            held.append(mx.get_active_memory())
            return True

        config = RunConfig(optimizer=optimizer, learning_rate=0.1, steps=10, schedule="cosine", **settings)
        gc.collect()
        train(config, Pull(), adapters, some_batches(), on_step)
        assert held[2] == held[9] and len(set(held[2:])) == 1


class TestDivergence:
    @pytest.mark.parametrize("accumulation, call", [(1, 3), (2, 6)], ids=["", "in the last micro-batch"])
    def test_a_bad_loss_leaves_the_adapters_of_the_step_before(self, accumulation, call):
        good, adapters = some_adapters(), some_adapters()
        run(good, steps=2, grad_accumulation=accumulation)
        with pytest.raises(MespError, match="loss became nan at step 3"):
            run(adapters, Pull(bad=(call, "loss")), steps=5, grad_accumulation=accumulation)
        assert_same_bits(good, adapters)

    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_a_bad_gradient_is_never_applied(self, accumulation):
        adapters = some_adapters()
        before = copied(adapters)
        with pytest.raises(MespError, match="gradient became nan at step 1"):
            run(adapters, Pull(bad=(1, PATHS[3])), grad_accumulation=accumulation)
        for (path, name), value in copied(adapters).items():
            assert np.isfinite(value).all()
            changed = (value != before[path, name]).any()
            assert changed == (PATHS.index(path) > 3), "what came before it is applied, and nothing after"

    def test_with_clipping_nothing_is_applied_then(self):
        adapters, before = some_adapters(), some_adapters()
        with pytest.raises(MespError, match="gradient became nan at step 1"):
            run(adapters, Pull(bad=(1, PATHS[0])), max_grad_norm=1.0)
        assert_same_bits(before, adapters)


class Silent:
    """The worker's channel, without a parent."""

    stop_asked = threading.Event()

    def say(self, event):
        pass

    def log(self, level, message):
        pass

    def wait_for_turn(self):
        return True


class Breaks(Pull):
    """Its checkpoint is gone in the middle of a backward; `whole_steps` holds the adapters as each step found them."""

    def __init__(self, at):
        super().__init__()
        self.at, self.whole_steps, self.half_trained = at, [], None

    def backpropagate(self, adapters, batch, weight, to):
        self.whole_steps.append(copied(adapters))
        super().backpropagate(adapters, batch, weight, to)

    def _gradients(self, pair, path, target, weight):
        if self.calls == self.at and path.startswith("model.layers.1."):
            raise CheckpointError("model.safetensors is gone.")
        return super()._gradients(pair, path, target, weight)


class TestNoHalfTrainedAdapterIsPresentedAsWhole:
    def job(self, tmp_path, **settings):
        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(json.dumps({"tokens": list(range(5, 20))}) + "\n" for _ in range(4)))
        tokens = tokenise(rows, bundled_path("tiny"), seq_len=8, loss_on="all")
        config = RunConfig(rank=2, seq_len=8, optimizer="sgd", learning_rate=0.1, **settings)
        return worker.Job(config, bundled_path("tiny"), tokens.path, tmp_path / "adapter")

    def test_the_one_from_before_the_step_is_kept(self, tmp_path, monkeypatch):
        method = Breaks(at=4)
        monkeypatch.setattr(job_run, "build_method", lambda *arguments: (method, {"all": "none"}))
        with pytest.raises(CheckpointError):
            worker.run(self.job(tmp_path, steps=9, save_every=2), Silent())
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert config["mesp"]["step"] == 3
        saved = mx.load(str(tmp_path / "adapter" / "adapters.safetensors"))
        after_three = method.whole_steps[3]
        assert len(saved) == len(after_three)
        for (path, name), value in after_three.items():
            np.testing.assert_array_equal(np.array(saved[f"{path}.{name}"]), value)

    def test_where_there_is_no_whole_one_there_is_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(job_run, "build_method", lambda *arguments: (Breaks(at=1), {"all": "none"}))
        with pytest.raises(CheckpointError):
            worker.run(self.job(tmp_path, steps=9, save_every=1), Silent())
        assert not (tmp_path / "adapter").exists()
