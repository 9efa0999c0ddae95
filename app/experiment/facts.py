"""What there is to say about a model once it was found. No Qt; loads no MLX."""

from dataclasses import dataclass

from mesp_core.machine.memory import MB
from mesp_core.models.checkpoint import Checkpoint, open_checkpoint
from mesp_core.models.source import ModelSource, local


@dataclass(frozen=True)
class Found:
    """A model that is on this machine."""

    source: ModelSource
    checkpoint: Checkpoint


def find(model: str) -> Found | None:
    """The model, opened and judged; None if it must be downloaded or made first.

    Raises:
        MespError: it cannot be a model, or what is there is damaged or not supported.
    """
    source = local(model)
    return None if source is None else Found(source, open_checkpoint(source.path))


def facts(checkpoint: Checkpoint) -> str:
    """Three short lines: what it is, how its numbers are kept, how much it reads."""
    architecture = checkpoint.architecture
    if checkpoint.bits is None:
        numbers = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[checkpoint.float_dtype]
    else:
        numbers = f"{checkpoint.bits}-bit, groups of {checkpoint.group_size}"
    longest = architecture.max_position_embeddings
    lines = (
        f"{architecture.model_type}, {architecture.num_hidden_layers} layers · {_count(checkpoint.parameters)} parameters",
        f"{numbers} · {checkpoint.size_bytes / MB:,.1f} MB on disk",
        "Context of unknown length" if longest is None else f"Context of {longest:,} tokens",
    )
    return "\n".join(lines)


def _count(n: int) -> str:
    for size, letter in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if n >= size:
            return f"{n / size:.3g}{letter}"
    return str(n)
