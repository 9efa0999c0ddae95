"""The options that say what a run is: their flags, and the configuration they make."""

import argparse
import dataclasses

from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_method, parse_size
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.settings.run_config import CHOICES, PRESETS, RunConfig, preset

# field -> (flag, what it is); the type follows from the field's default
FLAGS = {
    "model": ("--model", "tiny, synthetic:NAME, a folder, or a hub id org/name"),
    "data": ("--data", "a .jsonl file, or sample for the bundled one"),
    "rank": ("--rank", "rank of the adapters"),
    "alpha": ("--alpha", "the low-rank update is multiplied by alpha / rank"),
    "seq_len": ("--seq-len", "input tokens of a sample"),
    "batch_size": ("--batch-size", "samples in a micro-batch"),
    "grad_accumulation": ("--grad-accumulation", "micro-batches in a step"),
    "steps": ("--steps", "optimizer steps"),
    "learning_rate": ("--lr", "learning rate"),
    "optimizer": ("--optimizer", "optimizer"),
    "weight_decay": ("--weight-decay", "weight decay of adamw"),
    "schedule": ("--schedule", "how the learning rate goes after the warm-up"),
    "warmup_steps": ("--warmup-steps", "steps over which the learning rate rises"),
    "chat_template": ("--chat-template", "chatml, or a file with a Jinja template, in place of the model's own"),
    "loss_on": ("--loss-on", "learn from every token, or from what the assistant says"),
    "dtype": ("--dtype", "of the activations; auto: the checkpoint's on Metal, float32 on CPU"),
    "adapter_dtype": ("--adapter-dtype", "of the adapters and their gradients"),
    "kernel": ("--kernel", "how frozen weights are multiplied; auto chooses per device and checks the choice"),
    "seed": ("--seed", "of batches and initial adapters"),
    "save_every": ("--save-every", "write the adapter each so many steps; 0: only at the end"),
    "max_samples": ("--max-samples", "take only the first samples; 0: all"),
    "memory_limit_mb": ("--memory-limit-mb", "end the run when its footprint passes this; 0: no limit"),
    "time_limit_s": ("--time-limit-s", "stop after the step that passes this; 0: no limit"),
    "max_grad_norm": ("--max-grad-norm", "scale gradients down to this norm; 0: leave them as they are"),
    "scratch_dir": ("--scratch-dir", "folder of the scratch file of inputs=disk (default: in the cache folder)"),
}


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of a configuration that is not the method."""
    parser.add_argument("--preset", choices=list(PRESETS), default="first-run", help="where the defaults come from")
    defaults = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    for field, (flag, help_text) in FLAGS.items():
        kind = type(defaults[field])
        shown = f"{help_text} (default {defaults[field]})" if defaults[field] != "" else help_text
        parser.add_argument(
            flag, dest=field, type=kind, choices=CHOICES.get(field), help=shown, metavar=_metavar(field, kind)
        )
    parser.add_argument(
        "--target-modules",
        type=lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
        metavar="NAMES",
        help=f"projections that get an adapter, comma-separated (default {','.join(PROJECTIONS)})",
    )


def _metavar(field: str, kind: type) -> str | None:
    return None if field in CHOICES else {int: "N", float: "X", str: "TEXT"}[kind]


def config_of(options: argparse.Namespace, **changes: str) -> RunConfig:
    """The preset with what was given on top. Whoever typed a flag wants it named beside the field that is refused."""
    given = {name: getattr(options, name) for name in [*FLAGS, "target_modules"] if getattr(options, name) is not None}
    try:
        return preset(options.preset, **given, **changes)
    except UsageError as error:
        field, colon, rest = str(error).partition(":")
        if field not in FLAGS:
            raise
        flag = FLAGS[field][0]
        name = flag if flag == f"--{field}" else f"{flag} ({field})"
        raise UsageError(f"{name}{colon}{rest}") from None


def with_budget(method: str | None, budget: str) -> str:
    """A method that can have a budget (None: the first there is), and what `--budget` names, as one method.

    Raises:
        UsageError: if the budget is no size, the method is another or has a budget of its own.
    """
    try:
        parse_size(budget)
    except UsageError as error:
        raise UsageError(f"--budget: {error}") from None
    able = [name for name, record in METHODS.items() if record.has_budget]
    spec = parse_method(able[0] if method is None else method)
    if not spec.record.has_budget:
        names = " or ".join(able)
        raise UsageError(
            f"--budget: only {names} works within a budget, not {spec.key!r}. Name {names}, or leave --budget out."
        )
    if "budget" in spec.options:
        raise UsageError(f"--budget: {spec.key!r} has a budget of its own; leave one of the two out.")
    return f"{spec.key}:budget={budget.replace(' ', '')}"
