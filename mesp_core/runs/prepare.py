"""Everything that can fail before a worker starts: the model is there and whole, the data is read, tokenised and enough."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mesp_core.data.batches import check_enough
from mesp_core.data.token_set import TokenSet
from mesp_core.data.tokenise import tokenise
from mesp_core.errors import UsageError
from mesp_core.files.bundled import bundled_path
from mesp_core.files.user_path import user_path
from mesp_core.models.checkpoint import Checkpoint, open_checkpoint
from mesp_core.models.source import ModelSource, resolve
from mesp_core.settings.run_config import RunConfig


@dataclass(frozen=True)
class Prepared:
    """What a run of any method on one configuration needs."""

    source: ModelSource
    checkpoint: Checkpoint
    data_file: Path
    tokens: TokenSet


def prepare(config: RunConfig, on_progress: Callable[[str, float], None] | None = None) -> Prepared:
    """Find the model and the data, judge both, and tokenise. Loads no MLX; the weights stay on disk.

    `on_progress(message, fraction)` is called from this thread while something is downloaded, written, read or tokenised,
    about every 0.1 s. It may raise to cancel: what was under way is ended and its exception comes out of here.

    Raises:
        MespError: UsageError, CheckpointError or DataError, saying what is wrong with which file.
    """
    source = resolve(config.model, on_progress)
    checkpoint = open_checkpoint(source.path)
    check_seq_len(config, checkpoint)
    data_file = data_path(config.data)
    tokens = tokenise(
        data_file,
        source.path,
        seq_len=config.seq_len,
        loss_on=config.loss_on,
        max_samples=config.max_samples,
        vocab_size=checkpoint.architecture.vocab_size,
        chat_template=config.chat_template,
        on_progress=on_progress,
    )
    check_enough(tokens, config.batch_size, data_file)
    return Prepared(source, checkpoint, data_file, tokens)


def check_seq_len(config: RunConfig, checkpoint: Checkpoint) -> None:
    """Raises UsageError if `config.seq_len` is more than the model's positions, where its config.json says how many."""
    longest = checkpoint.architecture.max_position_embeddings
    if longest is not None and config.seq_len > longest:
        raise UsageError(f"seq_len: {config.seq_len} is more than {config.model} was made for; it allows up to {longest}.")


def data_path(data: str) -> Path:
    """The absolute path of the file that `RunConfig.data` names: `sample` is the bundled one. It need not exist."""
    return bundled_path("sample") if data == "sample" else user_path(data)
