"""`RunConfig`: everything that decides a run, immutable, checked before anything is loaded. Loads no MLX."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_method
from mesp_core.models.architecture import PROJECTIONS

CHOICES = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "linear", "cosine"),
    "loss_on": ("all", "completion"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "adapter_dtype": ("float32", "bfloat16", "float16"),
    "kernel": ("auto", "quantized", "dequantize"),
}
# field -> (smallest, largest); integers
RANGES = {
    "rank": (1, 4096),
    "seq_len": (1, 1_048_576),
    "batch_size": (1, 65_536),
    "grad_accumulation": (1, 65_536),
    "steps": (1, 100_000_000),
    "warmup_steps": (0, 100_000_000),
    "seed": (0, 2**63 - 1),
    "save_every": (0, 100_000_000),
    "max_samples": (0, 2**31 - 1),
    "memory_limit_mb": (0, 2**31 - 1),
}


@dataclass(frozen=True)
class RunConfig:
    """One run. The defaults are the preset `first-run`.

    Attributes:
        model: `tiny`, `synthetic:NAME`, a folder in mlx-community layout, or a hub id `org/name`.
        data: a .jsonl file, or `sample` for the bundled one.
        method: `NAME[:option[=value]…]`, see mesp_core/methods/names.py.
        rank, alpha: of the adapters; the update is scale·(x·A)·B with scale = alpha / rank.
        target_modules: which projections of every block get an adapter.
        seq_len: input positions of a sample, in tokens.
        batch_size: samples in a micro-batch; grad_accumulation: micro-batches in a step.
        learning_rate, optimizer, weight_decay (adamw only), schedule, warmup_steps: of the optimizer.
        chat_template: `chatml`, or a file with a Jinja template, in place of the model's own ("").
        loss_on: every token (`all`) or only what the assistant says (`completion`).
        dtype: of the activations; `auto` is the checkpoint's on Metal and float32 on CPU.
        adapter_dtype: of A, B and their gradients; the moments of adam and adamw, and their updates, are float32.
        kernel: how the frozen matmul is done; `auto` chooses per device and checks the choice.
        seed: of the batches and of the adapters' initial values.
        save_every: write the adapter each so many steps (0: only at the end).
        max_samples: take only the first samples of the data (0: all).
        memory_limit_mb: end the run when the worker's footprint passes this many MB (0: no limit).
        time_limit_s: stop after the step that passes this many seconds (0: no limit).
        max_grad_norm: scale a step's gradients down so that their norm is at most this (0: leave them as they are).
        scratch_dir: folder of the scratch file of methods with `inputs=disk` ("": `scratch` in the cache folder).
    """

    model: str = "tiny"
    data: str = "sample"
    method: str = "mesp"
    rank: int = 8
    alpha: float = 16.0
    target_modules: tuple[str, ...] = PROJECTIONS
    seq_len: int = 128
    batch_size: int = 1
    grad_accumulation: int = 1
    steps: int = 20
    learning_rate: float = 1e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    schedule: str = "constant"
    warmup_steps: int = 0
    chat_template: str = ""
    loss_on: str = "all"
    dtype: str = "auto"
    adapter_dtype: str = "float32"
    kernel: str = "auto"
    seed: int = 0
    save_every: int = 100
    max_samples: int = 0
    memory_limit_mb: int = 0
    time_limit_s: float = 0.0
    max_grad_norm: float = 0.0
    scratch_dir: str = ""

    def __post_init__(self) -> None:
        """Raises UsageError naming the field, its value and what is allowed."""
        for name in ("model", "data", "method"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise UsageError(f"{name}: {value!r} is not a name or path; give a non-empty text.")
        parse_method(self.method)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}.")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise UsageError(f"{name}: {value!r} is not a whole number from {low} to {high}.")
        _check_real(self, "learning_rate", 0.0, 10.0, open_low=True)
        _check_real(self, "alpha", 0.0, 1e6, open_low=True)
        _check_real(self, "weight_decay", 0.0, 10.0)
        _check_real(self, "time_limit_s", 0.0, 1e9)
        _check_real(self, "max_grad_norm", 0.0, 1e9)
        if not isinstance(self.chat_template, str) or (self.chat_template and not self.chat_template.strip()):
            raise UsageError(f"chat_template: {self.chat_template!r} is no path; leave it empty for the model's own.")
        if not isinstance(self.scratch_dir, str) or (self.scratch_dir and not self.scratch_dir.strip()):
            raise UsageError(f"scratch_dir: {self.scratch_dir!r} is no path; leave it empty for the cache folder.")
        if self.warmup_steps >= self.steps and self.warmup_steps:
            raise UsageError(
                f"warmup_steps: {self.warmup_steps} is not below steps ({self.steps}); the run would end while warming up."
            )
        self._check_targets()

    def _check_targets(self) -> None:
        listed = isinstance(self.target_modules, tuple | list | set | frozenset)
        if not listed or not all(isinstance(t, str) for t in self.target_modules):
            raise UsageError(f"target_modules: {self.target_modules!r} is not a list of names.")
        for target in self.target_modules:
            if target not in PROJECTIONS:
                raise UsageError(f"target_modules: {target!r} is not one of {', '.join(PROJECTIONS)}.")
        if not self.target_modules:
            raise UsageError(f"target_modules: none given; name at least one of {', '.join(PROJECTIONS)}.")
        # One order, so that two configurations that mean the same are equal.
        ordered = tuple(name for name in PROJECTIONS if name in self.target_modules)
        object.__setattr__(self, "target_modules", ordered)

    @property
    def scale(self) -> float:
        """What the low-rank update is multiplied by: alpha / rank."""
        return self.alpha / self.rank

    def replace(self, **changes: Any) -> "RunConfig":
        """This configuration with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; `from_dict` gives back an equal configuration."""
        return dataclasses.asdict(self) | {"target_modules": list(self.target_modules)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; fields left out take their default.

        Raises:
            UsageError: for a field that does not exist or a wrong value.
        """
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise UsageError(f"{name}: there is no such setting; there are {', '.join(known)}.")
        values = dict(values)
        if isinstance(values.get("target_modules"), list):
            values["target_modules"] = tuple(values["target_modules"])
        return cls(**values)


def _check_real(config: RunConfig, name: str, low: float, high: float, open_low: bool = False) -> None:
    value = getattr(config, name)
    if type(value) is int and low <= value <= high:  # JSON writes 16.0 as 16
        value = float(value)
        object.__setattr__(config, name, value)
    ok = isinstance(value, float) and math.isfinite(value) and low <= value <= high and not (open_low and value == low)
    if not ok:
        bound = f"above {low:g}" if open_low else f"from {low:g}"
        raise UsageError(f"{name}: {value!r} is not a number {bound} to {high:g}.")


PRESETS: dict[str, dict[str, Any]] = {
    "first-run": {},
    # The paper's setting (arXiv 2602.13069): it measures memory and time, it hardly learns.
    "paper": {
        "seq_len": 256,
        "optimizer": "sgd",
        "learning_rate": 1e-4,
        "adapter_dtype": "bfloat16",
    },
}


def preset(name: str, **changes: Any) -> RunConfig:
    """The named preset with some fields changed.

    Raises:
        UsageError: for an unknown preset or a wrong value.
    """
    if name not in PRESETS:
        raise UsageError(f"preset: {name!r} is not one of {', '.join(PRESETS)}.")
    return RunConfig.from_dict(PRESETS[name] | changes)
