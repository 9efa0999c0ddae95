"""A step in parts gives the bits that one call over everything gives."""

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest

from mesp_core.settings.run_config import RunConfig
from mesp_core.training.partial_update import PartialUpdate
from mesp_core.training.train import make_optimizer

PARTS = (("block.3", "block.1"), ("block.0",), ("block.2",))
STEPS = 6


def adapters(dtype=mx.float32):
    rng = np.random.default_rng(0)
    shapes = {"lora_a": (8, 4), "lora_b": (4, 8)}
    return {
        f"block.{layer}": {name: mx.array(rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
        for layer in range(4)
    }


def gradients_of(tree, step):
    rng = np.random.default_rng(step)
    return {
        path: {name: mx.array(rng.normal(size=array.shape)).astype(array.dtype) for name, array in pair.items()}
        for path, pair in tree.items()
    }


def configured(name, **settings):
    config = RunConfig(optimizer=name, steps=STEPS, learning_rate=0.05, weight_decay=0.3, **settings)
    return lambda: make_optimizer(config)


def rate():
    return optim.join_schedules([optim.linear_schedule(0.01, 0.1, 2), optim.cosine_decay(0.1, 5)], [2])


OPTIMIZERS = {
    **{name: configured(name) for name in ("sgd", "adam", "adamw")},
    **{
        f"{name} {schedule}": configured(name, schedule=schedule, warmup_steps=2)
        for name in ("sgd", "adam", "adamw")
        for schedule in ("linear", "cosine")
    },
    "adam with bias correction": lambda: optim.Adam(rate(), bias_correction=True),
    "adamw with bias correction": lambda: optim.AdamW(rate(), weight_decay=0.3, bias_correction=True),
    "sgd with momentum": lambda: optim.SGD(rate(), momentum=0.9, weight_decay=0.1),
    "lion": lambda: optim.Lion(rate()),
    "adafactor": lambda: optim.Adafactor(),
}


def cast(tree, dtype):
    return {path: {name: array.astype(dtype) for name, array in pair.items()} for path, pair in tree.items()}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parts_of_a_step_are_one_step(name, dtype):
    whole, parted = adapters(dtype), adapters(dtype)
    optimizer = OPTIMIZERS[name]()
    within = mx.float32 if isinstance(optimizer, optim.Adam) else dtype  # what the update is computed in
    optimizer.init(cast(whole, within))
    update = PartialUpdate(OPTIMIZERS[name](), parted)
    for step in range(STEPS):
        gradients = cast(gradients_of(whole, step), within)
        whole = cast(optimizer.apply_gradients(gradients, cast(whole, within)), dtype)
        mx.eval(whole, optimizer.state)
        update.begin_step()
        gradients = gradients_of(parted, step)
        for paths in PARTS:
            update.apply({path: gradients[path] for path in paths})
        for path, pair in whole.items():
            for part, array in pair.items():
                assert parted[path][part].dtype == dtype
                assert mx.array_equal(parted[path][part], array).item(), (step, path, part)
        if name != "adafactor":  # which has no learning rate of its own
            assert update.learning_rate == float(optimizer.learning_rate)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW])
def test_adam_moves_short_adapters_as_it_moves_float32_ones(make, dtype):
    """Gradients that get a hundred times smaller, which the second moment must follow. In float16 ε and squares of these
    gradients are 0, in bfloat16 β₂ is 1.
    """
    moved = {}
    for kind in (mx.float32, dtype):
        tree = {"block.0": {"lora_a": mx.zeros((64, 8), kind)}}
        update = PartialUpdate(make(1e-3), tree)
        for step in range(2000):
            size = 1e-3 if step < 200 else 1e-5
            gradient = size * np.random.default_rng(step).normal(size=(64, 8)).astype(np.float32)
            update.begin_step()
            tree["block.0"]["lora_a"] = mx.zeros((64, 8), kind)  # so that its own rounding plays no part
            update.apply({"block.0": {"lora_a": mx.array(gradient).astype(kind)}})
        moved[kind] = np.array(tree["block.0"]["lora_a"].astype(mx.float32))
    assert np.linalg.norm(moved[dtype] - moved[mx.float32]) <= 0.01 * np.linalg.norm(moved[mx.float32])


def test_calls_that_are_not_told_to_be_one_step_would_differ():
    """The comparison above can fail: counted by calls, Adam's corrections and the schedule run ahead."""
    whole, parted = adapters(), adapters()
    optimizer = OPTIMIZERS["adam with bias correction"]()
    whole = optimizer.apply_gradients(gradients_of(whole, 0), whole)
    update = PartialUpdate(OPTIMIZERS["adam with bias correction"](), parted)
    gradients = gradients_of(parted, 0)
    for paths in PARTS:
        update.begin_step()
        update.apply({path: gradients[path] for path in paths})
    assert not mx.array_equal(parted["block.2"]["lora_a"], whole["block.2"]["lora_a"]).item()


def test_only_what_is_named_changes_and_the_gradients_are_let_go():
    tree = adapters()
    before = {path: dict(pair) for path, pair in tree.items()}
    part = {"block.1": gradients_of(tree, 0)["block.1"]}
    PartialUpdate(optim.SGD(0.5), tree).apply(part)
    assert not part
    for path, pair in tree.items():
        assert all((array is before[path][name]) == (path != "block.1") for name, array in pair.items())


@pytest.mark.parametrize("make, moments", [(lambda: optim.SGD(0.1), 0), (lambda: optim.Lion(0.1), 1)], ids=["sgd", "lion"])
def test_nothing_is_left_to_evaluate_after_a_step(make, moments, exact_memory):
    """Neither the count, which nothing reads at a constant rate, nor Lion's momentum, which its update does not go through:
    what is not evaluated holds its gradients, or grows.
    """
    tree, held = adapters(), []
    mx.eval(tree)
    before, size = mx.get_active_memory(), sum(array.nbytes for pair in tree.values() for array in pair.values())
    update = PartialUpdate(make(), tree)
    for step in range(10):
        update.begin_step()
        gradients = gradients_of(tree, step)
        for paths in PARTS:
            update.apply({path: gradients[path] for path in paths})
        gradients = None
        held.append(mx.get_active_memory() - before)
    assert held[2] == held[9]
    assert held[9] == pytest.approx(moments * size, abs=0.5 * size)
