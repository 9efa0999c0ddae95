"""What is held while a step goes on, to the byte: what is kept, block inputs, and nothing from one step to the next."""

import mlx.core as mx
import pytest

from mesp_core.engine.block_inputs import OnDisk
from mesp_core.ops import attention
from mesp_core.training.train import train

TOKENS, HIDDEN, FLOAT = 37, 64, 4
INPUT = TOKENS * HIDDEN * FLOAT
# q and o, k and v, x₂, and a number a head; of the three blocks of the model `mixed` (engine/conftest.py)
ATTENTION = TOKENS * (2 * 192 + 2 * 64 + HIDDEN + 6) * FLOAT
ACTIVATION = TOKENS * 192 * FLOAT
EVERYTHING = {"attention": 3, "gate": 3, "up": 3, "sigma": 3}


pytestmark = pytest.mark.usefixtures("exact_memory")


class Held:
    """Notes how many bytes more than at the start are active when a phase begins and when a block's gradients have come."""

    def __init__(self):
        self.start = mx.get_active_memory()
        self.phases, self.blocks = {}, []

    def now(self):
        mx.synchronize()
        return mx.get_active_memory() - self.start

    def enter(self, phase):
        self.phases[phase] = self.now()

    def loss(self, loss):
        pass

    def gradients(self, part):
        part.clear()
        self.blocks.append(self.now())


@pytest.fixture
def held(model_of, make_batch, lean_with):
    """held(inputs=None, **keep) -> Held of one step, after one that was not watched."""
    model, batch = model_of("mixed"), make_batch(TOKENS)
    mx.eval(model.adapters)

    def watch(inputs=None, **keep):
        engine = lean_with(model, **keep)
        engine.inputs = inputs or engine.inputs
        for _ in range(2):
            seen = Held()
            engine.backpropagate(model.adapters, batch, 1.0, seen)
        assert seen.now() == 0  # whatever was kept, nothing is left
        return seen

    return watch


def near(size):
    """So many bytes; an array may take a few more, to be aligned."""
    return pytest.approx(size, abs=1024)


@pytest.mark.parametrize(
    "keep, sizes",
    [
        ({}, [0, 0, 0]),
        ({"attention": 1}, [0, 0, ATTENTION]),
        ({"gate": 2, "sigma": 1}, [0, ACTIVATION, 2 * ACTIVATION]),
        (EVERYTHING, [ATTENTION + 3 * ACTIVATION] * 3),
    ],
    ids=["nothing", "attention of one", "unequal", "everything"],
)
def test_what_is_kept_is_there_and_goes_block_by_block(keep, sizes, held):
    """`sizes`: of what is kept of each block. Beside it stand the inputs of the blocks to come and one gradient."""
    seen = held(**keep)
    assert seen.phases["loss"] == near(sum(sizes) + 4 * INPUT)  # three inputs and the last output
    assert seen.phases["backward"] == near(sum(sizes) + 4 * INPUT)
    for done, size in enumerate(seen.blocks, start=1):
        left = 3 - done
        assert size == near(sum(sizes[:left]) + (left + 1) * INPUT)


def test_a_blocks_own_are_gone_before_its_attention_goes_backward(held, monkeypatch):
    """There stand q, k, v, o, their gradient, x and g: neither x₂ nor what was kept of the MLP."""
    sizes, right = [], attention.tiled_backward

    def watched(*arguments, **named):
        mx.synchronize()
        sizes.append(mx.get_active_memory())
        return right(*arguments, **named)

    monkeypatch.setattr(attention, "tiled_backward", watched)
    start = mx.get_active_memory()
    found = {}
    for name, keep in {"nothing": {}, "the last block": {"attention": 1, "gate": 1, "up": 1, "sigma": 1}}.items():
        sizes.clear()
        held(**keep)
        found[name] = sizes[3] - start  # of the second step, its first block
    assert found["the last block"] <= found["nothing"] + 1024


def test_on_disk_no_input_is_in_memory(held, tmp_path):
    inputs = OnDisk(tmp_path, allow_tmpfs=True)
    try:
        seen = held(inputs)
    finally:
        inputs.close()
    assert [*seen.phases.values(), *seen.blocks] == [0, *[near(INPUT)] * 5]


@pytest.mark.parametrize("method", ["lean", "lean:inputs=disk:tmpfs", "lean:loss=full:weights=resident", "mesp"])
def test_nothing_grows_from_step_to_step(method, model_of, make_batch, built):
    """Of other lengths, and in one step as many samples as in two."""
    model = model_of("mixed")
    engine = built(model, method)
    batches = [make_batch(*lengths, seed=i) for i, lengths in enumerate([(37,), (50, 7), (12,), (33, 33), (1,), (37, 2)])]
    batches[4] = make_batch(2, holes=False)
    held = []

    def after(result):
        mx.synchronize()
        held.append(mx.get_active_memory())
        return True

    train(model.config.replace(steps=6, optimizer="sgd"), engine, model.adapters, iter(batches), after)
    assert held[1:] == [held[1]] * 5


def test_nor_does_what_is_kept(model_of, make_batch, lean_with):
    model = model_of("mixed")
    engine = lean_with(model, **EVERYTHING)
    held = []
    for seed, lengths in enumerate([(37,), (50, 7), (12,), (33, 33)]):
        engine.loss_and_gradients(model.adapters, make_batch(*lengths, seed=seed), 1.0)
        mx.synchronize()
        held.append(mx.get_active_memory())
    engine.logits(model.adapters, make_batch(20).inputs)
    held.append(mx.get_active_memory())
    assert held[1:] == [held[1]] * 4


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_nor_is_anything_left_of_a_step_that_broke_off(where, model_of, make_batch, lean_with, tmp_path):
    class Breaks(Held):
        def loss(self, loss):
            raise ZeroDivisionError

    model, batch = model_of("mixed"), make_batch(TOKENS)
    mx.eval(model.adapters)
    engine = lean_with(model, **EVERYTHING)
    if where == "disk":
        engine.inputs = OnDisk(tmp_path, allow_tmpfs=True)
    engine.backpropagate(model.adapters, batch, 1.0, Held())
    seen = Held()
    with pytest.raises(ZeroDivisionError):
        engine.backpropagate(model.adapters, make_batch(50), 1.0, Breaks())
    engine.backpropagate(model.adapters, batch, 1.0, Held())
    assert seen.now() == 0
    engine.close()
