"""`mesp bench plan`: is a step as long as the planner says? Each method's modelled seconds beside its measured ones.

This machine's figures are taken anew before and after every round of steps, so that whatever slows the machine down slows
both sides of the comparison; what is compared are medians.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mesp_core.bench.machine_figures import measured_now
from mesp_core.bench.trial import Trial, run_trial
from mesp_core.files.cache import cache_dir
from mesp_core.machine.model import MachineModel
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.synthetic import GEOMETRIES, write_checkpoint
from mesp_core.planner import plan, shapes_of
from mesp_core.settings.run_config import preset

WITHIN = 0.25  # of what was measured
BY_TURNS = ("mebp", "mesp", "mesp-store-h", "lean", "lean:budget=200MB")
ALONE = ("autodiff",)  # its step takes ten times as long, so it has one round


@dataclass(frozen=True)
class Case:
    """Blocks in the geometry of a known model, and a smaller vocabulary; one sample of `seq_len` tokens."""

    model: str
    blocks: int
    vocabulary: int
    seq_len: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.blocks} blocks of {self.model}, {self.seq_len} tokens, {self.dtype}"


CASES = (
    Case("qwen2.5-0.5b", 4, 32_000, 256, "float32"),
    Case("qwen2.5-0.5b", 2, 8_000, 256, "bfloat16"),
    Case("qwen2.5-1.5b", 2, 8_000, 64, "float32"),
    Case("llama-3.2-1b", 2, 8_000, 512, "float32"),
)
AUTODIFF = Case("qwen2.5-0.5b", 2, 8_000, 64, "float32")


@dataclass(frozen=True)
class StepTime:
    """What a method's step takes in one case, in seconds."""

    case: Case
    method: str
    modelled: float
    measured: float

    @property
    def ratio(self) -> float:
        """Modelled to measured."""
        return self.modelled / self.measured

    @property
    def ok(self) -> bool:
        """Whether the model is as near as it is to be."""
        return abs(self.ratio - 1) <= WITHIN

    def to_dict(self) -> dict[str, Any]:
        """The object printed by --json."""
        return {"event": "bench", **asdict(self), "ratio": self.ratio, "ok": self.ok}


def compare(rounds: int, say: Callable[[str], None]) -> Iterator[StepTime]:
    """Every case's methods. `say` hears what is done.

    Raises:
        MespError: if something cannot be measured.
    """
    for case in CASES:
        yield from _of_case(case, BY_TURNS, rounds, say)
    yield from _of_case(AUTODIFF, ALONE, 1, say)


def _of_case(case: Case, methods: tuple[str, ...], rounds: int, say: Callable[[str], None]) -> Iterator[StepTime]:
    say(str(case))
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="bench-") as root:
        folder = Path(root) / "model"
        sizes = {"num_hidden_layers": case.blocks, "vocab_size": case.vocabulary}
        write_checkpoint(folder, GEOMETRIES[case.model] | sizes)
        checkpoint = open_checkpoint(folder)
        config = preset("paper", seq_len=case.seq_len, dtype=case.dtype, adapter_dtype=case.dtype)
        shapes = shapes_of(config, checkpoint)
        taken: dict[str, list[float]] = {method: [] for method in methods}
        found = [measured_now(shapes)]
        for _ in range(rounds):
            trial = Trial(case.model, methods, case.seq_len, case.dtype, rounds=2)  # the first step warms up
            for step in run_trial(trial, folder, say)[len(methods) :]:
                taken[step.method].append(step.seconds)
            found.append(measured_now(shapes))
        machine = _median(found)
        for method in methods:
            modelled = plan(config, checkpoint, method, machine).step_time_s
            yield StepTime(case, method, modelled, statistics.median(taken[method]))


def _median(found: list[MachineModel]) -> MachineModel:
    values = [asdict(machine) for machine in found]
    numbers = {name for name, value in values[0].items() if isinstance(value, float)}
    return MachineModel(**values[0] | {name: statistics.median(each[name] for each in values) for name in numbers})
