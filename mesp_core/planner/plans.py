"""Plans: what a step of a method will need at its peak, and how long it will take; with a budget, what lean keeps."""

import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mesp_core.errors import UsageError
from mesp_core.lifetimes.keep import ACTIVATIONS, ATTENTION, GATE, SIGMA, SMALL_PART, UP, Keep
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.machine import figures
from mesp_core.machine.figures import Shapes
from mesp_core.machine.memory import MB
from mesp_core.machine.model import MachineModel
from mesp_core.machine.recorded import has_gpu, nearest, recorded
from mesp_core.methods.names import MethodSpec, parse_method
from mesp_core.models.architecture import projection_path
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.planner.budget import fastest
from mesp_core.planner.cost import Cost
from mesp_core.planner.step_work import StepWork
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
    `training_memory`: bytes of footprint that the run adds to a worker which has done nothing yet. `step_time_s`: of a step
    on `machine`.
    """

    method: str
    phases: tuple[PhasePlan, ...]
    keep: Keep | None
    inputs: str
    training_memory: int
    step_time_s: float
    machine: MachineModel

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


def plan(config: RunConfig, checkpoint: Checkpoint, method: str | None = None, machine: MachineModel | None = None) -> Plan:
    """What a step of `method` (default: the configuration's) will need on `machine`: its memory and its time.

    Every sample is taken to be `seq_len` long, and every token to have a label. Without a machine it is this one, as it was
    measured before; nothing is measured now.
    For lean with a budget, the fastest plan whose peak is within it; block inputs go to disk where that helps, unless the
    method says where they are.

    Raises:
        UsageError: if the method cannot be parsed; BudgetTooSmall, which is one, if no plan fits.
    """
    spec = parse_method(method or config.method)
    kind = spec.record.kind
    machine = machine or this_machine(config, checkpoint)
    mode = str(spec.option("weights")) if kind.blockwise else "resident"
    if mode == "mapped" and not machine.gpu:
        mode = "streamed"  # as weights.py falls back
    sizes = sizes_of(config, checkpoint, mode == "streamed", machine.gpu)
    step, cost = Step(config, spec, sizes), Cost(StepWork(config, spec, sizes), machine)
    keep, inputs = None, str(spec.option("inputs")) if kind.blockwise else "memory"
    if kind.keeps:
        keep = Keep(sizes.layers)
        if spec.record.has_budget and spec.option("budget") is not None:
            places = [inputs] if "inputs" in spec.options else ["memory", "disk"]
            keep, inputs = _within_budget(spec, step, cost, places)
    return _plan(spec, step.phases(keep, inputs), keep, inputs, mode == "mapped", cost)


def this_machine(config: RunConfig, checkpoint: Checkpoint) -> MachineModel:
    """What was measured of this machine for such a model; else the recorded figures of the machine nearest to it."""
    shapes = shapes_of(config, checkpoint)
    return figures.cached(shapes) or nearest(shapes.dtype)


def recorded_for(config: RunConfig, checkpoint: Checkpoint, name: str) -> MachineModel:
    """A recorded machine, for the number type that activations have there. Raises UsageError for an unknown name."""
    return recorded(name, shapes_of(config, checkpoint, has_gpu(name)).dtype)


def shapes_of(config: RunConfig, checkpoint: Checkpoint, gpu: bool | None = None) -> Shapes:
    """What a machine's figures for this run depend on. `gpu`: whether that machine has one; None: as this one."""
    model, entry = checkpoint.architecture, checkpoint.linears[projection_path(0, "gate_proj")]
    dtype = _dtype(config, checkpoint, on_gpu() if gpu is None else gpu)
    tokens = Shapes.rounded(config.batch_size * config.seq_len)
    return Shapes(model.hidden_size, model.intermediate_size, entry.bits, entry.group_size, dtype, tokens)


def sizes_of(config: RunConfig, checkpoint: Checkpoint, streamed: bool = True, gpu: bool | None = None) -> Sizes:
    """What decides the size of a run's arrays; samples are taken to be `seq_len` long, and every token to have a label.

    `gpu`: whether MLX computes on one; None: as it does here.
    """
    gpu = on_gpu() if gpu is None else gpu
    quantized = gpu if config.kernel == "auto" else config.kernel == "quantized"
    return Sizes(
        checkpoint,
        config.batch_size,
        config.seq_len,
        config.rank,
        config.target_modules,
        ITEM[_dtype(config, checkpoint, gpu)],
        ITEM[config.adapter_dtype],
        quantized,
        streamed,
    )


def on_gpu() -> bool:
    """Whether MLX computes on a GPU here: on Apple Silicon under macOS."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _dtype(config: RunConfig, checkpoint: Checkpoint, gpu: bool) -> str:
    """Of the activations."""
    if config.dtype != "auto":
        return config.dtype
    return FLOATS[checkpoint.float_dtype] if gpu else "float32"


def _plan(spec: MethodSpec, phases: Phases, keep: Keep | None, inputs: str, mapped: bool, cost: Cost) -> Plan:
    plans = []
    for name, moment in phases.items():
        parts = [Part(part, round(nbytes)) for part, nbytes in moment.items() if round(nbytes) > 0]
        plans.append(PhasePlan(name, tuple(sorted(parts, key=lambda part: -part.nbytes))))
    # Pages of a mapped file count as allocated, but not in the footprint.
    most = max(sum(size for part, size in moment.items() if not (mapped and part == HELD)) for moment in phases.values())
    overhead = spec.record.overhead_mb * MB
    training_memory = round(most + overhead)
    return Plan(spec.key, tuple(plans), keep, inputs, training_memory, cost.seconds(keep, inputs), cost.machine)


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
