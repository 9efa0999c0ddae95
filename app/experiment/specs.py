"""The numbers, choices and texts of a run in plain words: label, unit, tooltip, what is offered. No Qt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mesp_core.settings.run_config import CHOICES

Kind = Literal["whole", "real", "choice", "text"]


@dataclass(frozen=True)
class Spec:
    """One field of RunConfig. `offers`: numbers to pick from; others can be typed. `words`: a choice's values, named.

    `empty`: what it stands for if nothing is typed.
    """

    name: str
    label: str
    tooltip: str
    kind: Kind = "whole"
    unit: str = ""
    offers: tuple[float, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    empty: str = ""

    @property
    def choices(self) -> dict[str, str]:
        """Value -> its name on the screen, in the core's order."""
        return {value: self.words.get(value, value) for value in CHOICES[self.name]}


_TYPES = {"auto": "Automatic"}

BASIC = (
    Spec("rank", "LoRA rank", "How many columns the two small matrices have that are trained.", offers=(4, 8, 16, 32)),
    Spec(
        "seq_len",
        "Sequence length",
        "Samples are cut after this many tokens. Memory and time grow with it.",
        unit="tokens",
        offers=(64, 128, 256, 512, 1024),
    ),
    Spec("batch_size", "Batch size", "Samples that go through the model together.", unit="samples"),
    Spec("learning_rate", "Learning rate", "How far each step goes.", "real"),
    Spec(
        "optimizer",
        "Optimizer",
        "How a gradient becomes a step. SGD keeps nothing; Adam and AdamW keep two numbers for each one trained.",
        "choice",
        words={"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"},
    ),
    Spec("steps", "Steps", "How often the adapter is changed, for each method."),
)

ADVANCED = (
    Spec("alpha", "LoRA alpha", "The adapter's update is multiplied by alpha / rank.", "real"),
    Spec(
        "grad_accumulation",
        "Accumulation",
        "Batches whose gradients are added up before a step: a larger batch in the memory of a small one.",
        unit="batches",
    ),
    Spec("weight_decay", "Weight decay", "How much each step shrinks the adapter; of AdamW only.", "real"),
    Spec(
        "schedule",
        "Schedule",
        "How the learning rate goes on after the warm-up: as it is, or down to zero on a line or a cosine.",
        "choice",
        words={"constant": "Constant", "linear": "Linear", "cosine": "Cosine"},
    ),
    Spec("warmup_steps", "Warm-up", "The learning rate rises to its value over so many steps.", unit="steps"),
    Spec(
        "loss_on",
        "Learn from",
        "Which tokens are learnt: every one, or only what the assistant says.",
        "choice",
        words={"all": "All tokens", "completion": "Completions"},
    ),
    Spec(
        "chat_template",
        "Chat template",
        "How a chat becomes text: chatml, or a file with a Jinja template, in place of the model's own.",
        "text",
        empty="the model's own",
    ),
    Spec(
        "dtype",
        "Computing type",
        "The number type of the activations. Automatic: the checkpoint's on a GPU, float32 on a CPU.",
        "choice",
        words=_TYPES,
    ),
    Spec(
        "adapter_dtype",
        "Adapter type",
        "The number type of the adapter and its updates. In 16 bits, small updates round away.",
        "choice",
    ),
    Spec(
        "kernel",
        "Kernel",
        "How the frozen weights are multiplied: quantised as they are, or dequantised block by block. "
        "Automatic chooses for this machine and checks its choice.",
        "choice",
        words=_TYPES | {"quantized": "Quantized", "dequantize": "Dequantize"},
    ),
    Spec(
        "max_grad_norm",
        "Gradient norm",
        "Gradients larger than this are scaled down to it before a step; 0: they are left as they are.",
        "real",
    ),
    Spec("seed", "Seed", "The same seed gives the same batches and the same start, for every method."),
    Spec("save_every", "Save every", "The adapter is saved each so many steps; 0: only at the end.", unit="steps"),
    Spec("max_samples", "Use at most", "Only the first samples of the data; 0: all of them.", unit="samples"),
    Spec(
        "memory_limit_mb",
        "Memory limit",
        "A run whose footprint passes this is ended; 0: no limit.",
        unit="MB",
    ),
    Spec(
        "time_limit_s",
        "Time limit",
        "A method stops after the step that passes this; 0: no limit.",
        "real",
        unit="s",
    ),
    Spec(
        "scratch_dir",
        "Scratch folder",
        "Where methods with inputs=disk put a file while they run. Not on a memory disk: it is to save memory.",
        "text",
        empty="in the cache folder",
    ),
)
