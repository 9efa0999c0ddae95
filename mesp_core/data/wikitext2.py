"""WikiText-2 as chat rows: the data set of the reference app, made from the text on the Hugging Face hub."""

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from mesp_core.errors import MespError, UsageError
from mesp_core.files.whole_file import write_whole

# The official data set repository has Parquet files only; this one has the plain text, in the original archive.
REPO_ID = "ggml-org/ci"
ARCHIVE = "wikitext-2-raw-v1.zip"
MEMBERS = {
    "train": "wikitext-2-raw/wiki.train.raw",
    "valid": "wikitext-2-raw/wiki.valid.raw",
    "test": "wikitext-2-raw/wiki.test.raw",
}

# WikiText-2 proper is its raw text with rare words replaced.
UNKNOWN = "<unk>"
MIN_COUNT = 3
# A passage is 125 units for the user and the next 100 for the assistant. A unit is what splitting the lines at single
# spaces gives, so beside each word there are two for each line: its leading space and its line end.
USER_UNITS = 125
ASSISTANT_UNITS = 100


def download() -> Path:
    """The path of the archive, from the hub's cache or downloaded.

    Raises:
        MespError: it is not in the cache and cannot be downloaded.
    """
    import huggingface_hub  # slow to import, and needed for this alone
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # its retries are told once, below
    try:
        return Path(huggingface_hub.hf_hub_download(REPO_ID, ARCHIVE, repo_type="dataset"))
    except LocalEntryNotFoundError:
        raise MespError(
            f"WikiText-2 ({REPO_ID}, {ARCHIVE}) is not in the Hugging Face cache and the hub cannot be reached. "
            "Check the network connection and try again."
        ) from None
    except Exception as error:  # the hub's own errors, the HTTP library's, the system's: all mean "no file"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")
        raise MespError(
            f"WikiText-2 cannot be downloaded from the Hugging Face hub ({REPO_ID}, {ARCHIVE}): {reason}."
        ) from None


def build(out: Path, split: str = "test", fetch: Callable[[], Path] = download) -> int:
    """Write WikiText-2's `split` ("train", "valid" or "test") to `out` as chat rows; return the number of rows.

    Each row is a passage of about 220 words, its first part the user's message, the rest the assistant's. Words that
    the training text has fewer than three times become `<unk>`. `fetch` returns the path of the archive. `out` is
    replaced only when it is complete.

    Raises:
        UsageError: no such split.
        MespError: the archive cannot be had or is damaged, or `out` cannot be written.
    """
    out = Path(out)
    if split not in MEMBERS:
        raise UsageError(f"WikiText-2 has no split {split!r}; choose one of {', '.join(MEMBERS)}.")
    archive = fetch()
    vocabulary = {word for word, n in Counter(_read(archive, "train").split()).items() if n >= MIN_COUNT}
    rows = _rows(_read(archive, split), vocabulary)

    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for row in rows:
            yield json.dumps(row, ensure_ascii=False) + "\n"
            count += 1

    write_whole(out, lines())
    return count


def _read(archive: Path, split: str) -> str:
    try:
        with zipfile.ZipFile(archive) as file:
            return file.read(MEMBERS[split]).decode("utf-8")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise MespError(
            f"The WikiText-2 archive {archive} is damaged ({error}); delete it and run the command again."
        ) from None


def _rows(text: str, vocabulary: set[str]) -> Iterator[list[dict[str, str]]]:
    units = _units(text, vocabulary)
    while True:
        user = list(islice(units, USER_UNITS))
        assistant = list(islice(units, ASSISTANT_UNITS))
        if len(assistant) < ASSISTANT_UNITS:
            return  # the rest of the text is shorter than a passage
        parts = {"user": user, "assistant": assistant}
        yield [{"role": role, "content": " ".join(filter(None, part)).strip()} for role, part in parts.items()]


def _units(text: str, vocabulary: set[str]) -> Iterator[str]:
    for line in text.removesuffix("\n").split("\n"):
        yield ""
        for word in line.split():
            yield word if word in vocabulary else UNKNOWN
        yield "\n"
