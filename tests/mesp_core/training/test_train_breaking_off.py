"""Steps that do not end: dropped between micro-batches, or taken back when something breaks in the middle of one."""

import json
import math
import time

import mlx.core as mx
import pytest

from mesp_core.adapters.adapter import initial_adapters
from mesp_core.data.batches import Batch, batches
from mesp_core.data.tokenise import tokenise
from mesp_core.engine.block_inputs import OnDisk
from mesp_core.engine.method import Method
from mesp_core.errors import MespError
from mesp_core.files.bundled import bundled_path
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.settings.run_config import RunConfig
from mesp_core.training.build import build_method
from mesp_core.training.train import train
from mesp_core.training.undo import Undo

LAYERS = 4


class Parts(Method):
    """Gradients that come block by block, last block first; `break_at(call, layer)` may raise or return a gradient."""

    def __init__(self, gradient=lambda call, layer: 0.25, loss=lambda call: 1.0):
        self.gradient, self.loss, self.calls = gradient, loss, 0

    def backpropagate(self, adapters, batch, weight, to):
        self.calls += 1
        to.enter("forward")
        to.loss(mx.array(self.loss(self.calls) * batch.tokens))
        to.enter("backward")
        for layer in reversed(range(LAYERS)):
            path = f"model.layers.{layer}.mlp.up_proj"
            value = self.gradient(self.calls, layer)
            part = {path: {name: mx.full(a.shape, value, a.dtype) for name, a in adapters[path].items()}}
            mx.eval(part)
            to.gradients(part)


@pytest.fixture
def adapters(noise):
    tree = {
        f"model.layers.{layer}.mlp.up_proj": {"lora_a": noise(3, 2, seed=layer), "lora_b": noise(2, 3, seed=layer + 9)}
        for layer in range(LAYERS)
    }
    mx.eval(tree)
    return tree


def bits(adapters):
    return {(path, name): bytes(memoryview(array)) for path, pair in adapters.items() for name, array in pair.items()}


def any_batches():
    import numpy as np

    while True:
        yield Batch(np.zeros((1, 4), np.int32), np.array([[1, 1, 1, -1]], np.int32), 3)


@pytest.fixture
def run(tmp_path):
    """run(config, method, adapters, may_go_on, source) -> (steps or error, bits after each step, whether all is whole)."""

    def start(config, method, adapters, may_go_on=lambda step: True, source=None):
        undo = Undo(adapters, lambda: OnDisk(tmp_path / "scratch", allow_tmpfs=True), lambda message: pytest.fail(message))
        after = [bits(adapters)]

        def on_step(result):
            after.append(bits(adapters))
            return True

        try:
            ended = train(config, method, adapters, source or any_batches(), on_step, may_go_on=may_go_on, undo=undo)
        except Exception as error:
            ended = error
        undo.close()
        return ended, after, undo.whole

    return start


class TestBetweenMicroBatches:
    @pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_a_step_that_may_not_go_on_is_dropped_whole(self, run, adapters, optimizer, max_grad_norm):
        config = RunConfig(steps=5, grad_accumulation=4, optimizer=optimizer, max_grad_norm=max_grad_norm)
        asked, method = [], Parts()

        def may_go_on(step):
            asked.append(step)
            return len(asked) < 3 * 2 + 3  # before the last micro-batch of the third step

        ended, after, whole = run(config, method, adapters, may_go_on)
        assert ended == 2 and method.calls == 2 * 4 + 3 and asked == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert len(after) == 3 and bits(adapters) == after[-1] != after[0] and whole

    def test_in_the_first_step_nothing_was_learnt(self, run, adapters):
        ended, after, whole = run(RunConfig(steps=5, grad_accumulation=65536), Parts(), adapters, lambda step: False)
        assert ended == 0 and bits(adapters) == after[0] and whole

    def test_without_accumulation_it_is_not_asked(self, run, adapters):
        ended, _, _ = run(RunConfig(steps=2), Parts(), adapters, lambda step: pytest.fail("asked"))
        assert ended == 2

    def test_the_first_answer_comes_soon_whatever_is_accumulated(self, run, adapters):
        """What is prepared for 65,536 micro-batches before the first takes processor time of seconds, not of minutes."""
        before = time.process_time()
        run(RunConfig(steps=1, grad_accumulation=65536), Parts(), adapters, lambda step: False)
        assert time.process_time() - before < 10


BREAKS = {
    "gradient": ({"gradient": lambda call, layer: math.nan if (call, layer) == BREAK_AT else 0.25}, "gradient became nan"),
    "infinite": ({"gradient": lambda call, layer: math.inf if (call, layer) == BREAK_AT else 0.25}, "gradient became inf"),
    "method": ({"gradient": lambda call, layer: 1 / 0 if (call, layer) == BREAK_AT else 0.25}, "division by zero"),
}
ACCUMULATED = 3
BREAK_AT = (3 * ACCUMULATED, 1)  # in the last micro-batch of the third step, two blocks done and two to come


class TestInTheMiddleOfABackward:
    @pytest.mark.parametrize("what", BREAKS)
    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    @pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.1}, {"adapter_dtype": "bfloat16"}], ids=str)
    def test_the_adapters_are_those_of_the_step_before(self, run, adapters, optimizer, settings, what):
        if "adapter_dtype" in settings:
            for path, pair in adapters.items():
                adapters[path] = {name: array.astype(mx.bfloat16) for name, array in pair.items()}
            mx.eval(adapters)
        changes, words = BREAKS[what]
        config = RunConfig(steps=9, grad_accumulation=ACCUMULATED, optimizer=optimizer, learning_rate=0.1, **settings)
        ended, after, whole = run(config, Parts(**changes), adapters)
        assert words in str(ended)
        assert len(after) == 3 and after[-1] != after[-2] and whole
        assert bits(adapters) == after[-1]

    def test_the_test_above_can_fail(self, adapters):
        """Without undo the blocks that were done stay a step ahead."""
        config = RunConfig(steps=9, grad_accumulation=ACCUMULATED, optimizer="sgd", learning_rate=0.1)
        after = []
        with pytest.raises(MespError):
            train(
                config,
                Parts(**BREAKS["gradient"][0]),
                adapters,
                any_batches(),
                lambda result: not after.append(bits(adapters)),
            )
        assert bits(adapters) != after[-1]

    def test_a_loss_that_is_no_number_in_any_micro_batch(self, run, adapters):
        config = RunConfig(steps=9, grad_accumulation=ACCUMULATED)
        for call in range(2 * ACCUMULATED + 1, 3 * ACCUMULATED + 1):
            method = Parts(loss=lambda number, call=call: math.nan if number == call else 1.0)
            ended, after, whole = run(config, method, adapters)
            assert "loss became nan at step 3" in str(ended) and whole and bits(adapters) == after[-1]

    def test_an_update_that_breaks(self, run, adapters, monkeypatch):
        """As when memory runs out: some parts have been applied, one has been half."""
        from mesp_core.training.partial_update import PartialUpdate

        real, calls = PartialUpdate.apply, []

        def apply(self, gradients):
            calls.append(list(gradients))
            if len(calls) == LAYERS + 3:
                adapters[calls[-1][0]]["lora_a"] = mx.zeros((3, 2))
                raise RuntimeError("out of memory")
            real(self, gradients)

        monkeypatch.setattr(PartialUpdate, "apply", apply)
        ended, after, whole = run(RunConfig(steps=9, max_grad_norm=0.1), Parts(), adapters)
        assert "out of memory" in str(ended) and whole and bits(adapters) == after[-1] != after[0]


@pytest.mark.parametrize("method", ["mesp", "lean", "mebp", "autodiff"])
def test_a_real_methods_step_is_taken_back(run, tmp_path, method):
    """The model's last read fails in the second step, when half of its blocks have been updated."""
    file = tmp_path / "tokens.jsonl"
    file.write_text("".join(json.dumps({"tokens": list(range(start, start + 20))}) + "\n" for start in range(3, 40, 9)))
    tokens = tokenise(file, bundled_path("tiny"), seq_len=32, loss_on="all")
    config = RunConfig(method=method, rank=4, seq_len=32, steps=9, learning_rate=0.01)
    checkpoint = open_checkpoint(bundled_path("tiny"))
    adapters = initial_adapters(checkpoint.architecture, config)
    real, _ = build_method(config, checkpoint, adapters)

    class Breaking(Method):
        borrowed_bytes = real.borrowed_bytes

        def __init__(self):
            self.parts = 0

        def backpropagate(self, adapters, batch, weight, to):
            outer = self

            class Receiver:
                enter, loss = staticmethod(to.enter), staticmethod(to.loss)

                @staticmethod
                def gradients(part):
                    outer.parts += 1
                    to.gradients(part)
                    if outer.parts == outer.break_at:
                        raise RuntimeError("in the middle")

            real.backpropagate(adapters, batch, weight, Receiver)

    breaking = Breaking()
    breaking.break_at = 10**9
    ended, after, _ = run(config.replace(steps=1), breaking, adapters, source=batches(tokens, 1, 0))
    assert ended == 1
    a_step = breaking.parts
    breaking.parts, breaking.break_at = 0, a_step + max(1, a_step // 2)
    ended, after, whole = run(config, breaking, adapters, source=batches(tokens, 1, 0))
    real.close()
    assert "in the middle" in str(ended) and len(after) == 2 and after[1] != after[0]
    if a_step > 1:
        assert bits(adapters) == after[-1] and whole
    else:  # autodiff's gradients come all at once, and nothing is kept of what they change: then nobody calls it whole
        assert not whole
