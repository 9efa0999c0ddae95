"""From rows to samples: text to ids, the mask of what is to be predicted, windows, truncation.

seq_len L counts input positions. A sample has at most L + 1 ids: inputs are ids[:-1], labels ids[1:].
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from mesp_core.data.chat_template import ChatTemplate, Span, join_with_spans
from mesp_core.data.rows import Row
from mesp_core.data.special_tokens import end_of_text, read_object
from mesp_core.errors import CheckpointError, DataError, UsageError

ROWS_AT_ONCE = 64  # encode_batch spreads these over the cores


@dataclass(frozen=True)
class Sample:
    """`ids` (n,) int32 and `mask` (n,) uint8, 1 where the id is to be predicted; n ≤ L + 1, and n may be 0."""

    ids: np.ndarray
    mask: np.ndarray
    line: int
    truncated: bool = False

    @property
    def learnable(self) -> bool:
        """Whether there is anything to predict."""
        return bool(self.mask.any())


@dataclass(frozen=True)
class _Prepared:
    """A row as the text to encode. `spans` are the characters to learn, None for all of them."""

    row: Row
    text: str = ""
    spans: list[Span] | None = None
    add_special_tokens: bool = True
    ends: bool = False  # append the end-of-text token ...
    learn_end: bool = False  # ... and, where only spans are learnt, learn it


@dataclass
class Encoder:
    """Turns rows into samples with the tokenizer and chat template of a model folder."""

    model_dir: Path
    data: Path  # named in errors
    seq_len: int
    loss_on: str
    _tokenizer: Tokenizer = field(init=False)
    _template: ChatTemplate | None = field(init=False)
    _end: int | None = field(init=False)

    def __post_init__(self) -> None:
        """Raises CheckpointError when a file of the model folder is missing or broken."""
        self._tokenizer = load_tokenizer(self.model_dir)
        self._template = ChatTemplate.from_model_dir(self.model_dir)
        self._end = end_of_text(self.model_dir, self._tokenizer)

    def samples(self, rows: Iterable[Row], at_once: int = ROWS_AT_ONCE) -> Iterator[Sample]:
        """The samples of `rows`, in order: one or more of each row; one that is not `learnable` is to be skipped.

        Raises:
            UsageError: loss_on=completion and rows without a completion.
            DataError: the chat template fails on a row, with file and line.
            CheckpointError: the chat template is unsafe.
        """
        prepared = (self._prepare(row) for row in rows)
        while batch := list(islice(prepared, at_once)):
            encodings: dict[int, Encoding] = {}
            for special in (True, False):
                chosen = [i for i, p in enumerate(batch) if p.row.kind != "tokens" and p.add_special_tokens == special]
                texts = [batch[i].text for i in chosen]
                encodings.update(zip(chosen, self._tokenizer.encode_batch(texts, add_special_tokens=special), strict=True))
            for i, item in enumerate(batch):
                if item.row.kind == "tokens":
                    yield from self._windows(np.asarray(item.row.tokens, np.int32), item.row.line)
                elif item.row.kind == "text":
                    ids = np.asarray(encodings[i].ids, np.int32)
                    yield from self._windows(self._with_end(ids), item.row.line)
                else:
                    yield self._truncated(item, encodings[i])

    def _prepare(self, row: Row) -> _Prepared:
        only_spans = self.loss_on == "completion"
        if row.kind in ("text", "tokens"):
            if only_spans:
                raise UsageError(
                    f"loss_on=completion needs rows with a completion, but {self.data} has {row.kind} rows. "
                    'Use rows of {"prompt", "completion"}, {"messages"} or a list of {"role", "content"}, '
                    "or loss_on=all."
                )
            return _Prepared(row, row.text, ends=True)
        if self._template is not None:
            try:
                if only_spans:
                    text, spans = self._template.render_with_spans(row.messages)
                else:
                    text, spans = self._template.render(row.messages), None
            except DataError as error:
                raise DataError(f"{self.data}, line {row.line}: {error}") from None
            return _Prepared(row, text, spans, add_special_tokens=False)  # the template writes them itself
        if row.kind == "completion":
            prompt, completion = (message["content"] for message in row.messages)
            text, spans = prompt + completion, [(len(prompt), len(prompt) + len(completion))]
        else:
            text, spans = join_with_spans(row.messages)
        answered = row.messages[-1]["role"] == "assistant"
        return _Prepared(row, text, spans if only_spans else None, ends=True, learn_end=answered)

    def _with_end(self, ids: np.ndarray) -> np.ndarray:
        if self._end is None or (len(ids) and ids[-1] == self._end):
            return ids
        return np.append(ids, np.int32(self._end))

    def _windows(self, ids: np.ndarray, line: int) -> Iterator[Sample]:
        """Windows of L + 1 ids with stride L: the last id of one is the first input of the next, so that every id but
        the first is predicted exactly once, and no window has a single id. Fewer than two ids: one empty sample."""
        for start in range(0, max(len(ids) - 1, 1), self.seq_len):
            window = ids[start : start + self.seq_len + 1]
            mask = np.ones(len(window), np.uint8)
            mask[:1] = 0
            yield Sample(window, mask, line)

    def _truncated(self, item: _Prepared, encoding: Encoding) -> Sample:
        """One sample, cut after L + 1 ids."""
        ids = np.asarray(encoding.ids, np.int32)
        mask = np.ones(len(ids), np.uint8) if item.spans is None else _inside(encoding.offsets, item.spans)
        if item.ends:
            ids = self._with_end(ids)
            if len(mask) < len(ids):
                mask = np.append(mask, np.uint8(0))
            if len(ids) and ids[-1] == self._end and (item.spans is None or item.learn_end):
                mask[-1] = 1  # whether appended here or by the tokenizer, which gives it no characters
        mask[:1] = 0  # nothing comes before the first id to predict it from
        limit = self.seq_len + 1
        return Sample(ids[:limit], mask[:limit], item.row.line, truncated=len(ids) > limit)


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """tokenizer.json of `model_dir`, without any truncation or padding it asks for.

    Raises:
        CheckpointError: it is missing or broken.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; the model folder needs the tokenizer that belongs to it.")
    definition = read_object(path)
    _keep_spaces(definition.get("post_processor"))
    try:
        tokenizer = Tokenizer.from_str(dumps(definition))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{path} is not a usable tokenizer ({error}); download the model again.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _keep_spaces(post_processor: Any) -> None:
    """Let offsets count a token's leading space, which may lie in the prompt or the completion; ids stay the same."""
    if isinstance(post_processor, dict):
        if "trim_offsets" in post_processor:
            post_processor["trim_offsets"] = False
        for part in post_processor.get("processors") or ():
            _keep_spaces(part)


def _inside(offsets: list[tuple[int, int]], spans: list[Span]) -> np.ndarray:
    """uint8 (n,): 1 for the tokens that start inside a span.

    A token that straddles the start of a span starts before it and is not learnt: it holds text of the prompt, and the
    model is to continue the prompt, not to write it. One that straddles the end is learnt. Tokens without characters
    are those the tokenizer adds, such as a beginning-of-text token, and belong to no span.
    """
    bounds = np.asarray(offsets, np.int64).reshape(-1, 2)
    starts, ends = bounds[:, 0], bounds[:, 1]
    inside = np.zeros(len(bounds), bool)
    for first, last in spans:
        inside |= (starts >= first) & (starts < last)
    return (inside & (ends > starts)).astype(np.uint8)
