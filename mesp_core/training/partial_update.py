"""One step of an optimizer, made in several parts."""

import mlx.core as mx
import mlx.optimizers as optim

from mesp_core.device.evaluation import piece
from mesp_core.engine.method import AdapterTree


class PartialUpdate:
    """Updates `adapters` in place, some of them at a time; to the optimizer, all parts of a step are one step.

    `apply_gradients` counts its calls as steps, and schedules and bias corrections go by that count. So it is set back
    before each part: all of them see the numbers that one call over everything would, and give the same bits.

    `optimizer` is one of mlx.optimizers that has a step of its own (MultiOptimizer has not). Adam's and AdamW's moments are
    float32, and so is their update, whatever the adapters are: in float16 ε = 1e-8 and small squared gradients are 0, and in
    bfloat16 β₂ = 0.999 is 1, so that the second moment never falls again.
    """

    def __init__(self, optimizer: optim.Optimizer, adapters: AdapterTree) -> None:
        self._optimizer, self._adapters = optimizer, adapters
        short = any(array.dtype != mx.float32 for pair in adapters.values() for array in pair.values())
        self._widens = isinstance(optimizer, optim.Adam) and short
        optimizer.init(_as_float32(adapters) if self._widens else adapters)  # which reads shapes and types alone
        # SGD without momentum is given one of zeros that nothing reads: never evaluated, it stays unmade.
        self._stateless = isinstance(optimizer, optim.SGD) and optimizer.momentum <= 0
        self.begin_step()

    @property
    def learning_rate(self) -> float:
        """The rate that the last part was updated with."""
        return float(self._optimizer.learning_rate)

    def begin_step(self) -> None:
        """What is applied from now on belongs to a new step."""
        self._steps_before = self._optimizer.step

    def apply(self, gradients: AdapterTree) -> None:
        """Update the adapters that these gradients are of, evaluated on return. Empties `gradients`."""
        optimizer, paths = self._optimizer, list(gradients)
        optimizer.state["step"] = self._steps_before
        if self._widens:
            dtypes = {path: {name: array.dtype for name, array in self._adapters[path].items()} for path in paths}
            before = _as_float32({path: self._adapters[path] for path in paths})
            after = optimizer.apply_gradients(_as_float32(gradients), before)
            before = None
            after = {path: {name: array.astype(dtypes[path][name]) for name, array in after[path].items()} for path in paths}
        else:
            after = optimizer.apply_gradients(gradients, self._adapters)
        self._adapters.update(after)
        after = None
        gradients.clear()  # the old values are the graph's alone now: freed, or written over, as it is evaluated
        state = [] if self._stateless else [optimizer.state[path] for path in paths]
        scalars = [value for value in optimizer.state.values() if isinstance(value, mx.array)]  # step, learning rate
        piece([self._adapters[path] for path in paths], state, scalars)


def _as_float32(tree: AdapterTree) -> AdapterTree:
    """The same numbers, not evaluated."""
    return {path: {name: array.astype(mx.float32) for name, array in pair.items()} for path, pair in tree.items()}
