"""How long a step takes: its work, by a machine's figures. And what lean saves by what it keeps."""

from dataclasses import replace

from mesp_core.lifetimes.keep import ACTIVATIONS, ATTENTION, LARGE_PART, SMALL_PART, Keep
from mesp_core.machine.model import MachineModel
from mesp_core.ops.pieces import BLOCK_ELEMENTS
from mesp_core.planner.step_work import StepWork
from mesp_core.planner.work import Work

PARTS = (SMALL_PART, BLOCK_ELEMENTS, LARGE_PART)  # the sizes of the MLP's parts among which lean chooses
# Kinds of work that the device does, each done so many a second.
RATES = (
    "quantized_forward",
    "quantized_backward",
    "products",
    "narrow_products",
    "own_products",
    "thin_products",
    "thin_float_products",
    "dequantized",
    "exponentials",
    "softmaxes",
    "elements",
)


def seconds(work: Work, machine: MachineModel) -> float:
    """A GPU works while the host reads files; a CPU does one after the other. Both wait where an evaluation blocks."""
    device = work.kernels * machine.launch_s + sum(getattr(work, kind) / getattr(machine, kind) for kind in RATES)
    files = work.file_bytes / machine.file_bytes + work.disk_bytes / machine.disk_bytes
    together = max(device, files) if machine.gpu else device + files
    return together + work.drains * machine.wait_s + work.pieces * machine.submit_s


class Cost:
    """Seconds of a step of one configuration and method on one machine."""

    def __init__(self, work: StepWork, machine: MachineModel) -> None:
        self._work, self.machine = work, machine

    def seconds(self, keep: Keep | None, inputs: str) -> float:
        """Of one step. `keep` is lean's, `inputs` memory or disk."""
        return seconds(self._work.work(keep, inputs), self.machine)

    @property
    def saved(self) -> dict[str, float]:
        """By what lean can keep of a block: the seconds that it saves."""
        layers = self._work.sizes.layers
        nothing = Keep(layers)
        before = self.seconds(nothing, "memory")
        return {name: before - self.seconds(replace(nothing, **{name: 1}), "memory") for name in (ATTENTION, *ACTIVATIONS)}
