"""`RunConfig`: everything that decides a run, immutable, checked before anything is loaded. Loads no MLX."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_method
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.settings.setting import setting, settings_of

_COUNT = 100_000_000  # more steps than anybody waits for
_AUTO = {"auto": "Automatic"}
_FLOATS = {name: name for name in ("float32", "bfloat16", "float16")}


@dataclass(frozen=True)
class RunConfig:
    """One run. Each field's line declares a setting: see `Setting`. The defaults are the preset `first-run`."""

    model: str = setting(
        "tiny",
        "tiny, synthetic:NAME, a folder, or a hub id org/name",
        label="Model",
        tooltip="A model from the list, a folder in mlx-community layout, or a hub id such as "
        "mlx-community/Qwen2.5-0.5B-Instruct-4bit.",
    )
    data: str = setting(
        "sample",
        "a .jsonl file, or sample for the bundled one",
        label="Data",
        tooltip="A .jsonl file with one sample a line: chats, prompts with completions, texts or token ids.",
    )
    method: str = setting("mesp", f"one of {', '.join(METHODS)}, options behind a colon", check=parse_method)
    rank: int = setting(
        8,
        "rank of the adapters",
        between=(1, 4096),
        group="basic",
        label="LoRA rank",
        tooltip="How many columns the two small matrices have that are trained.",
        offers=(4, 8, 16, 32),
    )
    alpha: float = setting(
        16.0,
        "the adapter's update is multiplied by alpha / rank",
        between=(0.0, 1e6),
        above=True,
        group="advanced",
        label="LoRA alpha",
    )
    target_modules: tuple[str, ...] = setting(
        PROJECTIONS,
        "projections that get an adapter, comma-separated",
        choices={name: name for name in PROJECTIONS},
        group="advanced",
        label="Adapted layers",
        tooltip="Which matrices of every block get an adapter.",
    )
    seq_len: int = setting(
        128,
        "samples are cut after this many tokens. Memory and time grow with it",
        between=(1, 1_048_576),
        group="basic",
        label="Sequence length",
        unit="tokens",
        offers=(64, 128, 256, 512, 1024),
    )
    batch_size: int = setting(
        1,
        "samples that go through the model together",
        between=(1, 65_536),
        group="basic",
        label="Batch size",
        unit="samples",
    )
    grad_accumulation: int = setting(
        1,
        "batches whose gradients are added up before a step: a larger batch in the memory of a small one",
        between=(1, 65_536),
        group="advanced",
        label="Accumulation",
        unit="batches",
    )
    steps: int = setting(
        20,
        "how often the adapter is changed, for each method",
        between=(1, _COUNT),
        group="basic",
        after="optimizer",
        label="Steps",
    )
    learning_rate: float = setting(
        1e-3,
        "learning rate: how far each step goes",
        flag="--lr",
        between=(0.0, 10.0),
        above=True,
        group="basic",
        label="Learning rate",
        tooltip="How far each step goes.",
    )
    optimizer: str = setting(
        "adamw",
        "how a gradient becomes a step. SGD keeps nothing; Adam and AdamW keep two numbers for each one trained",
        choices={"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"},
        group="basic",
        label="Optimizer",
    )
    weight_decay: float = setting(
        0.01,
        "how much each step shrinks the adapter; of AdamW only",
        between=(0.0, 10.0),
        group="advanced",
        label="Weight decay",
    )
    schedule: str = setting(
        "constant",
        "how the learning rate goes on after the warm-up: as it is, or down to zero on a line or a cosine",
        choices={"constant": "Constant", "linear": "Linear", "cosine": "Cosine"},
        group="advanced",
        label="Schedule",
    )
    warmup_steps: int = setting(
        0,
        "the learning rate rises to its value over so many steps",
        between=(0, _COUNT),
        group="advanced",
        label="Warm-up",
        unit="steps",
    )
    chat_template: str = setting(
        "",
        "how a chat becomes text: chatml, or a file with a Jinja template",
        empty="the model's own",
        group="advanced",
        after="loss_on",
        label="Chat template",
    )
    loss_on: str = setting(
        "all",
        "which tokens are learnt: every one, or only what the assistant says",
        choices={"all": "All tokens", "completion": "Completions"},
        group="advanced",
        label="Learn from",
    )
    dtype: str = setting(
        "auto",
        "the number type of the activations; auto: the checkpoint's on a GPU, float32 on a CPU",
        choices=_AUTO | _FLOATS,
        group="advanced",
        label="Computing type",
        tooltip="The number type of the activations. Automatic: the checkpoint's on a GPU, float32 on a CPU.",
    )
    # What adam and adamw keep is in float32 whatever this is.
    adapter_dtype: str = setting(
        "float32",
        "the number type of the adapter and its updates. In 16 bits, small updates round away",
        choices=_FLOATS,
        group="advanced",
        label="Adapter type",
    )
    kernel: str = setting(
        "auto",
        "how frozen weights are multiplied; auto chooses per device and checks the choice",
        choices=_AUTO | {"quantized": "Quantized", "dequantize": "Dequantize"},
        group="advanced",
        label="Kernel",
        tooltip="How the frozen weights are multiplied: quantised as they are, or dequantised block by block. "
        "Automatic chooses for this machine and checks its choice.",
    )
    seed: int = setting(
        0,
        "the same seed gives the same batches and the same start, for every method",
        between=(0, 2**63 - 1),
        group="advanced",
        label="Seed",
    )
    save_every: int = setting(
        100,
        "the adapter is saved each so many steps; 0: only at the end",
        between=(0, _COUNT),
        group="advanced",
        label="Save every",
        unit="steps",
    )
    max_samples: int = setting(
        0,
        "only the first samples of the data; 0: all of them",
        between=(0, 2**31 - 1),
        group="advanced",
        label="Use at most",
        unit="samples",
    )
    memory_limit_mb: int = setting(
        0,
        "a run whose footprint passes this is ended; 0: no limit",
        between=(0, 2**31 - 1),
        group="advanced",
        label="Memory limit",
        unit="MB",
    )
    time_limit_s: float = setting(
        0.0,
        "a method stops after the step that passes this; 0: no limit",
        between=(0.0, 1e9),
        group="advanced",
        label="Time limit",
        unit="s",
    )
    max_grad_norm: float = setting(
        0.0,
        "gradients larger than this are scaled down to it before a step; 0: they are left as they are",
        between=(0.0, 1e9),
        group="advanced",
        after="kernel",
        label="Gradient norm",
    )
    scratch_dir: str = setting(
        "",
        "where methods with inputs=disk put a file while they run. Not on a memory disk: it is to save memory",
        empty="the cache folder",
        group="advanced",
        label="Scratch folder",
    )

    def __post_init__(self) -> None:
        """Raises UsageError naming the field, its value and what is allowed."""
        for name, declared in SETTINGS.items():
            object.__setattr__(self, name, declared.checked(getattr(self, name)))
        if self.warmup_steps >= self.steps and self.warmup_steps:
            raise UsageError(
                f"warmup_steps: {self.warmup_steps} is not below steps ({self.steps}); the run would end while warming up."
            )

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
        for name in values:
            if name not in SETTINGS:
                raise UsageError(f"{name}: there is no such setting; there are {', '.join(SETTINGS)}.")
        return cls(**values)


SETTINGS = settings_of(RunConfig)  # name -> its declaration, in the fields' order
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
