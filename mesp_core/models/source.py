"""Where a model comes from: what `RunConfig.model` names becomes a local checkpoint folder."""

import errno
import os
import re
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Literal

from mesp_core.errors import CheckpointError, MespError, UsageError
from mesp_core.files.bundled import bundled_path
from mesp_core.files.json_file import read_object
from mesp_core.files.user_path import user_path
from mesp_core.machine.memory import MB

OnProgress = Callable[[str, float], None]

_ALLOWED = (
    "Allowed are tiny, synthetic:NAME (such as synthetic:qwen2.5-0.5b), a folder in mlx-community layout, "
    "or a hub id org/name (such as mlx-community/Qwen2.5-0.5B-Instruct-4bit)."
)
_SYNTHETIC_WARNING = (
    "This model has random weights and its text is meaningless: use it for memory, time and gradient checks only."
)
_SYNTHETIC = "synthetic:"
_HUB_ID = re.compile(r"\w([\w.-]*\w)?/\w([\w.-]*\w)?", re.ASCII)
_FILE_ENDINGS = (".safetensors", ".json", ".jsonl", ".gguf", ".bin", ".pt", ".pth", ".npz", ".zip")

# What a tokenizer and its chat templates are made of.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
# Data only: neither code nor pickles are ever fetched.
_FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
_WANTED = {"allow_patterns": _FILES, "ignore_patterns": ["*/*"]}  # a checkpoint is flat: no onnx/, no original/
_POLL_S = 0.1


@dataclass(frozen=True)
class ModelSource:
    """`name` is what was asked for, `path` the absolute local folder, `warning` what a person should know first."""

    name: str
    path: Path
    kind: Literal["tiny", "synthetic", "directory", "hub"]
    warning: str | None = None


def resolve(model: str, on_progress: OnProgress | None = None) -> ModelSource:
    """The folder of `model`: "tiny", "synthetic:NAME", a directory, or a hub id "org/name" (cache first).

    `on_progress(message, fraction)` is called while something is made or downloaded; for a download it comes every
    0.1 s from the calling thread, and the fraction (0 to 1) may fall in the first moments, while file sizes become
    known. It may raise to cancel: its exception comes out of here.

    Raises UsageError when `model` cannot name a model, MespError when it cannot be had.
    """
    source = local(model)
    if source is not None:
        return source
    if model.startswith(_SYNTHETIC):
        from mesp_core.models.synthetic import ensure

        path = ensure(model.removeprefix(_SYNTHETIC), on_progress)
        return ModelSource(model, path, "synthetic", _SYNTHETIC_WARNING)
    return ModelSource(model, _from_hub(model, on_progress or (lambda message, fraction: None)), "hub")


def local(model: str) -> ModelSource | None:
    """The source of `model` if it is on this machine whole; None if it must be downloaded or made first.

    Raises UsageError when `model` cannot name a model.
    """
    if model == "tiny":
        return ModelSource(model, bundled_path("tiny"), "tiny")
    if model.startswith(_SYNTHETIC):
        from mesp_core.models.synthetic import find

        path = find(model.removeprefix(_SYNTHETIC))
        return None if path is None else ModelSource(model, path, "synthetic", _SYNTHETIC_WARNING)
    folder = user_path(model)
    if model.strip() and os.path.isdir(folder):
        return ModelSource(model, folder, "directory")
    _refuse_what_is_no_hub_id(model, folder)
    path = _in_hub_cache(model)
    return None if path is None else ModelSource(model, path, "hub")


def list_cached_models() -> list[str]:
    """The hub ids in the Hugging Face cache that need no download, sorted. No cache: an empty list."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return []
    return sorted(
        repo.repo_id
        for repo in cache.repos
        if repo.repo_type == "model"
        and any("main" in revision.refs and not _lacks(revision.snapshot_path) for revision in repo.revisions)
    )


def _refuse_what_is_no_hub_id(model: str, path: Path) -> None:
    if not model.strip():
        raise UsageError(f"model is empty. {_ALLOWED}")
    if "://" in model:
        raise UsageError(f"model '{model}' is a web address. {_ALLOWED}")
    if model.lower().endswith(".gguf"):
        raise UsageError(
            f"model '{model}' is a GGUF file, which is not supported. Use the same model from mlx-community, "
            "or convert the original with mlx_lm.convert."
        )
    if os.path.isfile(path):
        raise UsageError(f"model '{model}' is a file. Pass the folder that holds it, with its config.json.")
    if model.lower().endswith(_FILE_ENDINGS):
        raise UsageError(f"model '{model}' looks like a file, and does not exist. Pass the model's folder. {_ALLOWED}")
    if model.startswith(("/", ".", "~")) or model.endswith("/") or model.count("/") > 1 or "\\" in model:
        raise UsageError(f"model '{model}': there is no folder {path}. {_ALLOWED}")
    if not _HUB_ID.fullmatch(model) or "--" in model or ".." in model or model.endswith(".git") or len(model) > 96:
        raise UsageError(f"model '{model}' is neither a known name, a folder nor a hub id. {_ALLOWED}")


def _lacks(snapshot: Path) -> str:
    """The first thing that a checkpoint needs and `snapshot` has not, "" if nothing. A dangling link is not there."""
    if not (snapshot / "config.json").exists():
        return "config.json"
    if not any(file.exists() for file in snapshot.glob("*.safetensors")):
        return "safetensors weights"
    for index in snapshot.glob("*.safetensors.index.json"):
        try:
            shards = set(read_object(index)["weight_map"].values())
        except (CheckpointError, KeyError, TypeError, AttributeError):
            continue  # a damaged index is for whoever opens the checkpoint to explain
        for shard in sorted(map(str, shards)):
            if not (snapshot / shard).exists():
                return shard
    return ""


def _in_hub_cache(repo_id: str) -> Path | None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(huggingface_hub.snapshot_download(repo_id, local_files_only=True, **_WANTED))
    except LocalEntryNotFoundError:
        return None
    # An interrupted download leaves a snapshot without some files; without a tokenizer it is worth asking again.
    has_tokenizer = any((cached / name).exists() for name in ("tokenizer.json", "tokenizer.model"))
    return cached if has_tokenizer and not _lacks(cached) else None


def _from_hub(repo_id: str, on_progress: OnProgress) -> Path:
    path = Path(_download(repo_id, on_progress))
    if lack := _lacks(path):
        raise MespError(
            f"The hub model '{repo_id}' came without {lack}: either it has none (only safetensors weights are read), "
            "or its copy in the cache is incomplete and the hub cannot be reached. "
            "Pass another model, or try again with a network."
        )
    return path


def _download(repo_id: str, on_progress: OnProgress) -> str:
    """Download in a thread of its own, reporting from this one, so that cancelling never waits for the network."""
    import huggingface_hub

    bars: list = []
    cancelled = Event()
    download: Future[str] = Future()

    def work() -> None:
        try:
            bar_class = _bar_class(bars, cancelled)
            download.set_result(huggingface_hub.snapshot_download(repo_id, tqdm_class=bar_class, **_WANTED))
        except BaseException as error:
            download.set_exception(error)

    Thread(target=work, name=f"download {repo_id}", daemon=True).start()
    try:
        on_progress(f"Looking up {repo_id}", 0.0)
        while not wait([download], timeout=_POLL_S).done:
            bar = max(bars, key=lambda bar: bar.n, default=None)
            if bar and bar.total:
                message = f"Downloading {repo_id}: {bar.n / MB:.0f} of {bar.total / MB:.0f} MB"
                on_progress(message, min(1.0, bar.n / bar.total))
            else:
                on_progress(f"Looking up {repo_id}", 0.0)
    except BaseException:
        cancelled.set()
        raise
    if error := download.exception():
        raise _explained(repo_id, error) from error
    on_progress(f"Downloaded {repo_id}", 1.0)
    return download.result()


def _bar_class(bars: list, cancelled: Event) -> type:
    """A progress bar that draws nothing, adds itself to `bars` if it counts bytes, and raises once `cancelled`."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **{**options, "disable": True})
            if options.get("unit") == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            if cancelled.is_set():
                raise InterruptedError("the download was cancelled")
            self.n += n or 0

    return Bar


def _explained(repo_id: str, error: BaseException) -> MespError:
    """What went wrong with a download, in plain words."""
    from huggingface_hub import constants, errors

    local = "pass a local folder or a model that is already in the cache"
    if isinstance(error, errors.GatedRepoError):
        return MespError(
            f"The hub model '{repo_id}' is gated: accept its terms on its hub page and log in with `hf auth login`, "
            f"or {local}."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return MespError(
            f"There is neither a folder nor a hub model '{repo_id}', or it is private: check the spelling, "
            f"log in with `hf auth login` if it is private, or {local}."
        )
    if getattr(error, "errno", None) == errno.ENOSPC or "no space left" in str(error).lower():
        return MespError(
            f"The disk is full: '{repo_id}' does not fit into {constants.HF_HUB_CACHE}. "
            "Free some space, or point HF_HOME to another disk."
        )
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return MespError(
            f"'{repo_id}' is neither a folder nor in the cache, and HF_HUB_OFFLINE forbids downloading: {local}."
        )
    if isinstance(cause, PermissionError):
        return MespError(f"'{repo_id}' cannot be written to the cache {constants.HF_HUB_CACHE}: permission denied.")
    if isinstance(cause, errors.HfHubHTTPError):
        status = cause.response.status_code
        return MespError(f"The hub answered the request for '{repo_id}' with status {status}: try later, or {local}.")
    # HTTPError is what the hub's HTTP client raises for a missing network, whichever client that is.
    if isinstance(error, errors.LocalEntryNotFoundError) or isinstance(cause, (errors.HTTPError, OSError)):
        return MespError(
            f"'{repo_id}' is neither a folder nor in the cache, and mesp cannot reach the hub "
            f"({type(cause).__name__}): {local}."
        )
    reason = (str(error).splitlines() or [""])[0]
    return MespError(f"Downloading '{repo_id}' failed ({type(error).__name__}: {reason}): try again, or {local}.")
