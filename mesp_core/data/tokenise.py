"""Tokenising a data file once: in a child process of its own, its ids kept in the cache for the next run.

The child keeps the tokenizer's memory out of the caller, which may be a window or about to be measured.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mesp_core.data.read_once import CHUNK, OnProgress, readable
from mesp_core.data.rows import unreadable
from mesp_core.data.template_choice import chosen_template
from mesp_core.data.token_set import TokenSet
from mesp_core.errors import CheckpointError, DataError, MespError, UsageError
from mesp_core.files.cache import cache_dir
from mesp_core.models.source import TOKENIZER_FILES
from mesp_core.processes.parent_side import ask

FORMAT_VERSION = 3  # raise it when the same files would give other ids, or another layout
LOSS_ON = ("all", "completion")
MAX_ENTRIES = 32
KEY = re.compile("[0-9a-f]{32}")  # the name of an entry
TEMPORARY = (".new-", ".old-", ".stream-")  # how temporary folders begin, here and in token_set and read_once
ABANDONED_S = 24 * 3600  # a temporary folder this old is what a killed process left
ATTEMPTS = 3
REPORT_S = 0.1

# All that a sample depends on, besides the data file and the options.
MODEL_FILES = (*TOKENIZER_FILES, "tekken.json", "config.json", "generation_config.json")
MORE_TEMPLATES = "additional_chat_templates"  # a folder of *.jinja
# ... and what reads them.
PACKAGES = ("tokenizers", "transformers", "mlx-lm")


def tokenise(
    data: Path,
    model_dir: Path,
    *,
    seq_len: int,
    loss_on: str,
    max_samples: int = 0,
    vocab_size: int | None = None,
    chat_template: str = "",
    on_progress: OnProgress | None = None,
) -> TokenSet:
    """The samples of `data` for the model in `model_dir`, from the cache or freshly made.

    Args:
        seq_len: input positions; a sample has at most seq_len + 1 ids.
        loss_on: "all" or "completion".
        max_samples: stop after this many; 0 for all.
        vocab_size: the number of rows of the model's embedding; ids are checked against it.
        chat_template: as in RunConfig.
        on_progress: called about every 0.1 s: while a file is read, with the fraction that was; while the samples are made,
            with 0.0, as nobody knows how much is left. It may raise to cancel: the child is ended and the exception comes
            out of here.

    Raises:
        UsageError: `data` cannot be read, or an option is wrong or does not fit the data.
        DataError: a row cannot be used, or nothing is left to learn from.
        CheckpointError: the tokenizer or chat template is missing, broken, unsafe or larger than the model.
        MespError: the cache cannot be written, or the child died.
    """
    data, model_dir = Path(data), Path(model_dir)
    if loss_on not in LOSS_ON:
        raise UsageError(f"loss_on is {loss_on!r}; choose one of {', '.join(LOSS_ON)}.")
    if seq_len < 1:
        raise UsageError(f"seq_len is {seq_len}; it must be at least 1.")
    if max_samples < 0:
        raise UsageError(f"max_samples is {max_samples}; it must be 0 (all) or more.")
    template = chosen_template(chat_template)
    options = {"seq_len": seq_len, "loss_on": loss_on, "max_samples": max_samples, "template": template}
    store = cache_dir() / "tokens"
    with readable(data, store, on_progress) as file:
        try:
            tokens = _cached_or_made(store, file, model_dir, options, on_progress)
        except MespError as error:  # a person knows the name they gave, not the copy's
            raise type(error)(str(error).replace(str(file), str(data))) from error
    _check_ids(tokens, data, model_dir, vocab_size)
    return tokens


def _cached_or_made(
    store: Path, data: Path, model_dir: Path, options: dict[str, Any], on_progress: OnProgress | None
) -> TokenSet:
    """The entry of `data` as it is now; where it changes meanwhile, that of the bytes which the samples were made of."""
    content = _hash_of(data, unreadable, on_progress)
    for _ in range(ATTEMPTS):
        models = _model_parts(model_dir, on_progress)
        entry = store / _key(content, models, options)
        tokens = _open(entry)
        if tokens is not None:
            return tokens
        request = {"data": data, "model_dir": model_dir, "description": _description(models)}
        with _new_folder(store) as folder:
            request = {name: str(path) for name, path in (request | {"folder": folder}).items()} | options
            content = _run_child(request, on_progress)["data_sha256"]
            if _model_parts(model_dir, on_progress) != models:
                continue  # nobody knows which of the two the samples were made with
            entry = store / _key(content, models, options)
            _give_name(folder, entry)
        _prune(store, spare=entry)
    tokens = _open(entry)
    if tokens is None:
        raise MespError(
            f"The token cache in {store} is damaged again and again, or {model_dir} is being written to; "
            "check the disk, wait until the model is complete, or set MESP_CACHE_DIR."
        )
    return tokens


def _key(content: str, models: dict[str, str | None], options: dict[str, Any]) -> str:
    """The name of the cache entry: a hash of all that the ids depend on."""
    return _digest({"data": content, **options, **models})


def _digest(parts: dict[str, Any]) -> str:
    versions = {name: version(name) for name in PACKAGES}
    return hashlib.sha256(json.dumps([FORMAT_VERSION, versions, parts], sort_keys=True).encode()).hexdigest()[:32]


def description_file(model_dir: Path) -> Path:
    """Where the description of a model folder's tokenizer is kept, see `describe`. Raises CheckpointError as `tokenise`."""
    return _description(_model_parts(Path(model_dir), None))


def _description(models: dict[str, str | None]) -> Path:
    return cache_dir() / "tokenizers" / f"{_digest(models)}.json"


def _model_parts(model_dir: Path, on_progress: OnProgress | None) -> dict[str, str | None]:
    """The hashes of the model's files that the ids depend on; None for those it has not."""
    templates = sorted(f"{MORE_TEMPLATES}/{path.name}" for path in (model_dir / MORE_TEMPLATES).glob("*.jinja"))
    paths = {name: model_dir / name for name in (*MODEL_FILES, *templates)}
    return {
        name: _hash_of(path, _unreadable_model_file, on_progress) if path.is_file() else None for name, path in paths.items()
    }


def _unreadable_model_file(path: Path, error: OSError | ValueError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")


def _hash_of(path: Path, explain: Callable[[Path, Exception], MespError], on_progress: OnProgress | None) -> str:
    """The SHA-256 of a file, which may be as large as a disk; `explain` makes the error to raise of the system's."""
    digest, done, told = hashlib.sha256(), 0, time.monotonic()
    for chunk, size in _chunks(path, explain):
        digest.update(chunk)
        done += len(chunk)
        if on_progress is not None and done != size and time.monotonic() - told >= REPORT_S:
            on_progress(f"Reading {path.name}", min(1.0, done / size) if size else 0.0)
            told = time.monotonic()
    return digest.hexdigest()


def _chunks(path: Path, explain: Callable[[Path, Exception], MespError]) -> Iterator[tuple[bytes, int]]:
    """The content of a file in pieces, each with the size in bytes of the whole; 0 where the system tells none."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while chunk := file.read(CHUNK):
                yield chunk, size
    except (OSError, ValueError) as error:
        raise explain(path, error) from None


def _open(entry: Path) -> TokenSet | None:
    """The entry, marked as just used; None when there is none. A damaged one is removed."""
    if not os.path.lexists(entry):
        return None
    try:
        tokens = TokenSet.open(entry)
    except DataError:
        _remove(entry)
        return None
    with suppress(OSError):  # the cache may be one that only another user can write
        os.utime(entry)
    return tokens


@contextmanager
def _new_folder(store: Path) -> Iterator[Path]:
    """An empty folder beside the entries, gone after the block unless it got a name."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    except OSError as error:
        raise _not_writable(store, error) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _give_name(folder: Path, entry: Path) -> None:
    """Several processes may make one entry at once: the first to finish gives its, the others use that one."""
    try:
        folder.rename(entry)
    except OSError as error:
        if not entry.is_dir():
            raise _not_writable(entry.parent, error) from None


def _run_child(request: dict[str, Any], on_progress: OnProgress | None) -> dict[str, Any]:
    """The reply of mesp_core.data.tokenise_child; its errors are raised here, with the same class and text."""
    message = f"Tokenising {Path(request['data']).name}"
    on_wait = None if on_progress is None else lambda: on_progress(message, 0.0)
    return ask("mesp_core.data.tokenise_child", request, f"Tokenising {request['data']} failed", on_wait)


def _prune(store: Path, spare: Path) -> None:
    """Remove all but the most recently used entries, and what killed processes left; nothing else. Never fails."""
    entries, now = [], time.time()
    try:
        for path in store.iterdir():
            used = path.stat().st_mtime
            if KEY.fullmatch(path.name):
                entries.append((used, path))
            elif path.name.startswith(TEMPORARY) and now - used > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return  # another process is pruning too
    entries.sort(reverse=True, key=lambda item: (item[1] == spare, item[0]))
    for _, path in entries[MAX_ENTRIES:]:
        with suppress(MespError):
            _remove(path)


def _remove(entry: Path) -> None:
    """Remove an entry such that no other process sees half of it."""
    try:
        with tempfile.TemporaryDirectory(prefix=".old-", dir=entry.parent, ignore_cleanup_errors=True) as doomed:
            entry.rename(Path(doomed, entry.name))
    except FileNotFoundError:
        pass  # another process was faster
    except OSError as error:
        raise _not_writable(entry.parent, error) from None


def _not_writable(store: Path, error: OSError) -> MespError:
    reason = error.strerror or error
    return MespError(f"The token cache {store} cannot be written: {reason}. Set MESP_CACHE_DIR to another folder.")


def _check_ids(tokens: TokenSet, data: Path, model_dir: Path, vocab_size: int | None) -> None:
    if vocab_size is None or tokens.max_id < vocab_size:
        return
    position = int(np.argmax(np.asarray(tokens.ids) >= vocab_size))
    token, line = int(tokens.ids[position]), tokens.line(tokens.sample_at(position))
    if tokens.kind == "tokens":
        raise DataError(
            f"{data}, line {line}: token id {token} is outside the model's vocabulary; "
            f"expected ids from 0 to {vocab_size - 1} (vocab_size {vocab_size})."
        )
    raise CheckpointError(
        f"{model_dir / 'tokenizer.json'} gives token id {token} for line {line} of {data}, but the model has only "
        f"{vocab_size} (vocab_size): the tokenizer belongs to another model."
    )
