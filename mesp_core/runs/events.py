"""What a run says while it goes: one dataclass an event, one JSON object a line. Used on both sides. Loads no MLX."""

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """The base of all events; `method` is the method's full string."""

    event: ClassVar[str]
    method: str

    def to_dict(self) -> dict[str, Any]:
        """The object that is printed and stored, `event` first."""
        return {"event": self.event, **finite(vars(self))}

    def to_json(self) -> str:
        """`to_dict` as one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(frozen=True)
class Loaded(Event):
    """The checkpoint is open and the first step is about to begin. Sizes in MB (1024·1024 bytes).

    `device_info` is what MLX says of the device in use, by MLX's names: on Metal its architecture and, in bytes,
    memory_size, max_recommended_working_set_size and max_buffer_length; on a CPU less. Results of older versions lack it.
    """

    event: ClassVar[str] = "loaded"
    model_type: str
    parameters: int
    trainable_parameters: int
    bits: int | None
    dtype: str
    adapter_dtype: str
    device: str
    kernels: dict[str, str]
    baseline_mb: float
    samples: int
    device_info: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step. `tokens` are input positions computed, `trained_tokens` those with a label.

    The worker leaves the footprints and what follows None; the session, which owns the meter, fills them in.
    `footprint_peak_exact` says whether the peak is the system's own and not the largest sample. `t_s` is when the step
    ended, in seconds on the clock of `Memory.t_s`; `timestamp` the same in seconds since 1970.
    """

    event: ClassVar[str] = "step"
    step: int
    loss: float
    step_time_s: float
    tokens: int
    trained_tokens: int
    learning_rate: float
    allocator_peak_mb: float
    allocator_peak_by_phase_mb: dict[str, float]
    gradient_norm: float | None = None
    footprint_start_mb: float | None = None
    footprint_end_mb: float | None = None
    footprint_peak_mb: float | None = None
    footprint_peak_exact: bool | None = None
    perplexity: float | None = None
    tokens_per_s: float | None = None
    thermal_state: str | None = None
    battery_percent: float | None = None
    timestamp: float | None = None
    t_s: float | None = None


@dataclass(frozen=True)
class Memory(Event):
    """The largest footprint since the last one of these; `t_s` counts from the worker's start."""

    event: ClassVar[str] = "memory"
    t_s: float
    footprint_mb: float


@dataclass(frozen=True)
class Saved(Event):
    """The adapter of this step was written; adapter is its folder."""

    event: ClassVar[str] = "saved"
    step: int
    adapter: str


@dataclass(frozen=True)
class Log(Event):
    """Something worth telling; level is info, warning or error."""

    event: ClassVar[str] = "log"
    level: str
    message: str


@dataclass(frozen=True)
class Heartbeat(Event):
    """The worker lives."""

    event: ClassVar[str] = "heartbeat"
    t_s: float


@dataclass(frozen=True)
class Done(Event):
    """The worker ended well; outcome is finished or stopped, adapter the folder it wrote (None: nothing was learnt)."""

    event: ClassVar[str] = "done"
    outcome: str
    steps: int
    adapter: str | None


@dataclass(frozen=True)
class Error(Event):
    """The run cannot go on; `message` is for the user, `details` (a traceback) for --debug."""

    event: ClassVar[str] = "error"
    kind: str
    message: str
    exit_code: int = 1
    details: str = field(default="")


EVENTS: dict[str, type[Event]] = {cls.event: cls for cls in (Loaded, Step, Memory, Saved, Log, Heartbeat, Done, Error)}


def parse_event(line: str) -> Event:
    """The inverse of `Event.to_json`.

    Raises:
        ValueError: if the line is not an event.
    """
    try:
        values = json.loads(line)
        cls = EVENTS[values.pop("event")]
        if cls is Step and values["loss"] is None:
            values["loss"] = math.nan
        return cls(**values)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not an event: {line[:200]!r}") from error


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity in it turned into None, because JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value
