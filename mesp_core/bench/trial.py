"""One measurement: a child process in which methods do training steps by turns, watched by the footprint meter."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from mesp_core.machine.memory import MB
from mesp_core.machine.meter import Meter
from mesp_core.processes.parent_side import Child, Reply
from mesp_core.processes.start import blas_for_child

BASELINE = "mebp"
# In a method's name: the allocator's peak of the baseline's first step in the same trial, as a size such as 190000KB.
BASELINE_PEAK = "peak-of-mebp"


@dataclass(frozen=True)
class Trial:
    """What a child does: `rounds` times a training step of each method in turn, each from the same fresh adapters.

    Attributes:
        model: a name of models/synthetic.py.
        methods: by their usual names; `BASELINE_PEAK` in one stands for a size, and `BASELINE` then comes before it.
        dtype: of activations and adapters.
        blocks: compute only the first so many (0: all); what the others would hold is told beside the peak.
        labelled: the share of tokens with a label.
    """

    model: str
    methods: tuple[str, ...]
    seq_len: int
    dtype: str
    rounds: int = 1
    blocks: int = 0
    labelled: float = 1.0


@dataclass(frozen=True)
class TrialStep:
    """One step. `method` as the trial names it, `key` as it was run.

    `left_out_mb`: by their names, what the blocks that were not computed would hold in every phase of the step.
    `training_memory_mb`: the process's largest footprint so far, over that just before the checkpoint was opened.
    """

    method: str
    key: str
    seconds: float
    peak_by_phase_mb: dict[str, float]
    blocks: int
    blocks_of_model: int
    left_out_mb: dict[str, float]
    training_memory_mb: float

    @property
    def peak_mb(self) -> float:
        """The allocator's peak, the largest of the phases, with what was left out."""
        return max(self.peak_by_phase_mb.values()) + sum(self.left_out_mb.values())


def run_trial(trial: Trial, folder: Path, say: Callable[[str], None]) -> list[TrialStep]:
    """The steps of a trial on the checkpoint in `folder`, in order. `say` is told of each, and what methods log.

    Raises:
        MespError: what the child raises (UsageError for a method that cannot be had), or how it died.
    """
    request = {"trial": asdict(trial), "folder": str(folder)}
    with Child("mesp_core.bench.child", blas=blas_for_child()[0]) as child, Meter(child.pid) as meter:
        return list(_steps(child.replies(request, "bench"), meter, say))


def _steps(replies: Iterable[Reply], meter: Meter, say: Callable[[str], None]) -> Iterator[TrialStep]:
    baseline_mb = 0.0
    for reply in replies:
        if "log" in reply:
            say(f"  {reply['log']}")
        elif "baseline_mb" in reply:
            baseline_mb = reply["baseline_mb"]
        else:
            meter.mark()  # one sample more, as near to the step's end as can be
            step = TrialStep(**reply, training_memory_mb=meter.peak / MB - baseline_mb)
            phases = ", ".join(f"{name} {mb:.1f}" for name, mb in step.peak_by_phase_mb.items())
            say(f"  {step.key}: {step.seconds:.2f} s, allocator peak {step.peak_mb:.2f} MB ({phases})")
            yield step
