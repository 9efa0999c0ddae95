"""How a method run ended: one method's part of a run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """How a method run ended. `kind` is finished, stopped, or what went wrong; `message` says it to a person.

    kind: finished | stopped | killed | crashed | silent | memory-limit | or the kind of the worker's own error.
    """

    kind: str
    message: str
    steps: int = 0
    adapter: Path | None = None
    footprint_peak_mb: float | None = None
    exit_code: int = 0
    details: str = ""

    @property
    def ok(self) -> bool:
        """Whether the method run ended as it should."""
        return self.kind in ("finished", "stopped")

    def __str__(self) -> str:
        return self.message
