"""One measurement: a child process in which methods do training steps by turns, watched by the footprint meter."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mesp_core.child import blas_for_child, start_module
from mesp_core.errors import MespError, UsageError
from mesp_core.memory import MB, Meter

# In a method's name: the allocator's peak of mebp's first step in the same trial, such as 190000KB.
MEBP_PEAK = "peak-of-mebp"


@dataclass(frozen=True)
class Trial:
    """What a child does: `rounds` times a training step of each method in turn, each from the same fresh adapters.

    Attributes:
        model: a name of models/synthetic.py.
        methods: by their usual names; `MEBP_PEAK` in one stands for a size, and mebp then comes before it.
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
    blas, _ = blas_for_child()
    child = start_module("mesp_core.bench.child", blas=blas)
    # Read while the child works: a pipe that is full of warnings would stop it.
    words: deque[str] = deque(maxlen=3)
    reader = threading.Thread(target=lambda: words.extend(child.stderr), daemon=True)
    reader.start()
    try:
        with Meter(child.pid) as meter:
            child.stdin.write(json.dumps({"trial": asdict(trial), "folder": str(folder)}) + "\n")
            child.stdin.flush()
            steps = list(_steps(map(json.loads, child.stdout), meter, say))
        if child.wait() != 0:
            reader.join(1.0)
            told = " / ".join(word.strip() for word in words)
            raise MespError(f"bench: the computing process died (exit code {child.returncode}). {told}")
        return steps
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            stream.close()


def _steps(replies: Iterator[dict[str, Any]], meter: Meter, say: Callable[[str], None]) -> Iterator[TrialStep]:
    baseline_mb = 0.0
    for reply in replies:
        if "error" in reply:
            raise (UsageError if reply["usage"] else MespError)(reply["error"])
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
