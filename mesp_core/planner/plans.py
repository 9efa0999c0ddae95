"""Plans: what a step of a method will need at its peak; with a budget, what lean keeps."""

import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mesp_core.errors import UsageError
from mesp_core.lifetimes.keep import ACTIVATIONS, ATTENTION, GATE, SIGMA, SMALL_PART, UP, Keep
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.machine.memory import MB
from mesp_core.methods.names import MethodSpec, parse_method
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.planner.budget import fastest
from mesp_core.planner.cost import Cost
from mesp_core.planner.steps import HELD, Phases, Step
from mesp_core.settings.run_config import RunConfig

KEPT_NAMES = {ATTENTION: "attention", GATE: "gate", UP: "up", SIGMA: "σ(gate)"}
PLACES = {"memory": "in memory", "disk": "on disk"}
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# A budget is for what is measured, and a prediction may be too low: by up to 3 % in what it was held against, but by 5 % in
# one very small model (hidden size 256), whose matrices are a single row block each.
BUDGET_MARGIN = 0.04


@dataclass(frozen=True)
class Part:
    """What some memory is for."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class PhasePlan:
    """A phase of a step at the moment of its most memory; the largest part first."""

    name: str
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """All parts together: the allocator's peak in this phase."""
        return sum(part.nbytes for part in self.parts)

    @property
    def largest(self) -> Part:
        """The largest part."""
        return self.parts[0]


@dataclass(frozen=True)
class Plan:
    """What one method will need.

    `keep` is what lean keeps (None for other methods), `inputs` where block inputs are: memory or disk.
    `training_memory`: bytes of footprint that the run adds to a worker which has done nothing yet. `relative_time`: of a
    step, to that of lean which keeps nothing; None for other methods, for which nothing is predicted.
    """

    method: str
    phases: tuple[PhasePlan, ...]
    keep: Keep | None
    inputs: str
    training_memory: int
    relative_time: float | None

    @property
    def allocator_peak(self) -> int:
        """Bytes: the largest of the phases."""
        return max(phase.nbytes for phase in self.phases)

    def fits(self, memory_bytes: int) -> bool:
        """Whether so much memory is enough for the run."""
        return self.training_memory <= memory_bytes


def in_words(chosen: Plan) -> str:
    """What a plan of lean keeps of how many blocks, and where its block inputs are."""
    keep = chosen.keep
    kept: dict[int, list[str]] = {}
    for name in (ATTENTION, *ACTIVATIONS):
        if count := getattr(keep, name):
            kept.setdefault(count, []).append(KEPT_NAMES[name])
    text = "; ".join(f"{', '.join(names)} of {_blocks(count, keep.layers)}" for count, names in kept.items())
    return (
        f"{'kept: ' + text if text else 'nothing kept'}; block inputs {PLACES[chosen.inputs]}; "
        f"{keep.part_elements:,} elements of an MLP matrix at a time"
    )


def _blocks(count: int, layers: int) -> str:
    return f"all {layers} blocks" if count == layers else f"the last {count} of {layers} blocks"


class BudgetTooSmall(UsageError):
    """No plan fits; the message says how much the smallest takes, which is `smallest` in bytes."""

    def __init__(self, message: str, smallest: int) -> None:
        super().__init__(message)
        self.smallest = smallest


def plan(config: RunConfig, checkpoint: Checkpoint, method: str | None = None) -> Plan:
    """What a step of `method` (default: the configuration's) will need.

    Every sample is taken to be `seq_len` long, and every token to have a label.
    For lean with a budget, the fastest plan whose peak is within it; block inputs go to disk where that helps, unless the
    method says where they are.

    Raises:
        UsageError: if the method cannot be parsed; BudgetTooSmall, which is one, if no plan fits.
    """
    spec = parse_method(method or config.method)
    kind = spec.record.kind
    mode = str(spec.option("weights")) if kind.blockwise else "resident"
    if mode == "mapped" and not on_gpu():
        mode = "streamed"  # as weights.py falls back
    sizes = sizes_of(config, checkpoint, streamed=mode == "streamed")
    step = Step(config, spec, sizes)
    inputs = str(spec.option("inputs")) if kind.blockwise else "memory"
    keep, relative_time = None, None
    if kind.keeps:
        cost, keep = Cost(sizes), Keep(sizes.layers)
        usual = cost.seconds(keep, "memory")
        if spec.record.has_budget and spec.option("budget") is not None:
            places = [inputs] if "inputs" in spec.options else ["memory", "disk"]
            keep, inputs = _within_budget(spec, step, cost, places)
        relative_time = cost.seconds(keep, inputs) / usual
    phases = step.phases(keep, inputs)
    return _plan(spec, phases, keep, inputs, relative_time, mode == "mapped")


def sizes_of(config: RunConfig, checkpoint: Checkpoint, streamed: bool = True) -> Sizes:
    """What decides the size of a run's arrays; samples are taken to be `seq_len` long, and every token to have a label."""
    gpu = on_gpu()
    dtype = config.dtype
    if dtype == "auto":
        dtype = FLOATS[checkpoint.float_dtype] if gpu else "float32"
    quantized = gpu if config.kernel == "auto" else config.kernel == "quantized"
    return Sizes(
        checkpoint,
        config.batch_size,
        config.seq_len,
        config.rank,
        config.target_modules,
        ITEM[dtype],
        ITEM[config.adapter_dtype],
        quantized,
        streamed,
    )


def on_gpu() -> bool:
    """Whether MLX computes on a GPU here: on Apple Silicon under macOS."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _plan(
    spec: MethodSpec, phases: Phases, keep: Keep | None, inputs: str, relative_time: float | None, mapped: bool
) -> Plan:
    plans = []
    for name, moment in phases.items():
        parts = [Part(part, round(nbytes)) for part, nbytes in moment.items() if round(nbytes) > 0]
        plans.append(PhasePlan(name, tuple(sorted(parts, key=lambda part: -part.nbytes))))
    # Pages of a mapped file count as allocated, but not in the footprint.
    most = max(sum(size for part, size in moment.items() if not (mapped and part == HELD)) for moment in phases.values())
    overhead = spec.record.overhead_mb * MB
    return Plan(spec.key, tuple(plans), keep, inputs, round(most + overhead), relative_time)


def _within_budget(spec: MethodSpec, step: Step, cost: Cost, places: Sequence[str]) -> tuple[Keep, str]:
    budget = spec.option("budget")

    def peak(keep: Keep, where: str) -> float:
        return (1 + BUDGET_MARGIN) * max(sum(moment.values()) for moment in step.phases(keep, where).values())

    chosen = fastest(step.sizes, cost, peak, budget, places)
    if chosen is None:
        least = Keep(step.sizes.layers, part_elements=SMALL_PART)
        smallest, where = min((peak(least, where), where) for where in places)
        alternative = "" if "disk" in places else ", leave inputs=memory out"
        # Rounded up, so that the figure it names is enough.
        raise BudgetTooSmall(
            f"budget: {budget / MB:,.1f} MB is too small; the smallest plan, with block inputs {PLACES[where]}, takes "
            f"{math.ceil(10 * smallest / MB) / 10:,.1f} MB. Raise it{alternative}, or lower seq_len, batch_size or rank.",
            math.ceil(smallest),
        )
    return chosen
