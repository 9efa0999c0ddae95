"""Samples as the model will see them, for a person to look at: text, token ids, and which of them carry loss.

The text is made in a child process of its own, as tokenising is: a tokenizer's memory, and the lock it holds while it loads,
stay out of a window's process. Loads neither MLX nor a tokenizer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mesp_core.data.token_set import TokenSet
from mesp_core.data.tokenise import description_file
from mesp_core.processes.parent_side import ask


@dataclass(frozen=True)
class Piece:
    """The text of a run of ids that are all learnt or all not. Empty where the run holds but part of a character."""

    text: str
    learnt: bool


@dataclass(frozen=True)
class PreviewSample:
    """Sample `index` of a token set, from line `line` of the data file.

    `learnt[i]` says whether `ids[i]` is predicted with loss. The texts of `pieces`, joined, are the decoded ids, special
    tokens shown. `roles` are those of the row's messages ("user", "assistant", ...; "prompt", "completion"); none for rows
    of text or tokens. A row that was cut has the roles of the whole row.
    """

    index: int
    line: int
    roles: tuple[str, ...]
    ids: tuple[int, ...]
    learnt: tuple[bool, ...]
    pieces: tuple[Piece, ...]


def preview(
    tokens: TokenSet,
    data_file: Path,
    model_dir: Path,
    first: int,
    count: int = 100,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[PreviewSample]:
    """`count` samples from `first` (0 or more) on; fewer at the end of the token set, none beyond it.

    `tokens` is what `data_file` gave with the tokenizer in `model_dir`. `on_progress(message, fraction)` is called about
    every 0.1 s and may raise to cancel: the child is ended and the exception comes out of here.

    Raises:
        UsageError, DataError: the data file is not there any more, or is another one by now.
        CheckpointError: the tokenizer is missing or broken.
        MespError: the child died.
    """
    indices = range(max(first, 0), min(first + count, len(tokens)))
    if not indices:
        return []
    request = {
        "tokens": str(tokens.path),
        "data": str(data_file),
        "model_dir": str(model_dir),
        "description": str(description_file(model_dir)),
        "first": indices.start,
        "count": len(indices),
    }
    message = f"Reading {data_file.name}"
    on_wait = None if on_progress is None else lambda: on_progress(message, 0.0)
    reply = ask("mesp_core.data.preview_child", request, f"Showing {data_file} failed", on_wait)
    samples = []
    for index, (roles, pieces) in zip(indices, reply["samples"], strict=True):
        ids, mask = tokens.sample(index)
        samples.append(
            PreviewSample(
                index=index,
                line=tokens.line(index),
                roles=tuple(roles),
                ids=tuple(ids.tolist()),
                learnt=tuple(mask.astype(bool).tolist()),
                pieces=tuple(Piece(text, learnt) for text, learnt in pieces),
            )
        )
    return samples
