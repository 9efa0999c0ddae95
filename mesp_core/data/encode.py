"""From rows to samples: text to ids, the mask of what is to be predicted, windows, truncation.

seq_len L counts input positions. A sample has at most L + 1 ids: inputs are ids[:-1], labels ids[1:].
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Encoding

from mesp_core.data.chat_template import ChatTemplate, Span
from mesp_core.data.rows import Row
from mesp_core.data.tokenizer import describe
from mesp_core.errors import DataError, UsageError

ROWS_AT_ONCE = 64  # encode_batch spreads these over the cores
NO_END = "The model names no end-of-text token, so what is learnt from texts does not end."


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


class Encoder:
    """Turns rows into samples with the tokenizer and chat template of a model folder.

    `warnings` are sentences for a person, about what was met so far.
    """

    def __init__(
        self,
        model_dir: Path,
        data: Path,
        seq_len: int,
        loss_on: str,
        template: str | None = None,
        description: Path | None = None,
    ) -> None:
        """`data` is named in errors; `template` replaces the model's own; `description` as in `describe`.

        Raises:
            CheckpointError: a file of the model folder is missing or broken.
        """
        self._model_dir, self._data, self._seq_len, self._loss_on = model_dir, data, seq_len, loss_on
        found = describe(model_dir, description)
        self._tokenizer, self._end = found.load(), found.end
        origin, sources = (model_dir, found.templates) if template is None else ("--chat-template", {"default": template})
        self._templates = {
            name: ChatTemplate(source, origin=origin, special_tokens=found.special_tokens, options=found.template_options)
            for name, source in sources.items()
        }
        self.warnings: list[str] = []
        if template is not None and "<|im_start|>" in template and self._tokenizer.token_to_id("<|im_start|>") is None:
            self.warnings.append(
                "The chat template writes <|im_start|>, which is no token of this model: it is learnt as several pieces."
            )

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
        only_spans = self._loss_on == "completion"
        if row.kind in ("text", "tokens"):
            if only_spans:
                raise UsageError(
                    f"loss_on=completion needs rows with a completion, but {self._data} has {row.kind} rows. "
                    'Use rows of {"prompt", "completion"}, {"messages"} or a list of {"role", "content"}, '
                    "or loss_on=all."
                )
            return _Prepared(row, row.text)
        template = self._template_for(row)
        try:
            if only_spans:
                text, spans = template.render_with_spans(row.messages, row.tools)
            else:
                text, spans = template.render(row.messages, row.tools), None
        except DataError as error:
            raise DataError(f"{self._data}, line {row.line}: {error}") from None
        return _Prepared(row, text, spans, add_special_tokens=False)  # the template writes them itself

    def _template_for(self, row: Row) -> ChatTemplate:
        """As transformers chooses among named ones: that for tools where there are some, else the default."""
        if row.tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        what = "a prompt and its completion" if row.kind == "completion" else "a chat"
        if self._templates:
            lack = f"none of its chat templates ({', '.join(self._templates)}) is the default"
        else:
            lack = "it has no chat template that would say how to write one"
        raise DataError(
            f"{self._data}, line {row.line}: this is {what}, and the model in {self._model_dir} was not made for it: "
            f"{lack}. Name one with --chat-template FILE, or --chat-template chatml."
        )

    def _with_end(self, ids: np.ndarray) -> np.ndarray:
        if self._end is None and NO_END not in self.warnings:
            self.warnings.append(NO_END)
        if self._end is None or (len(ids) and ids[-1] == self._end):
            return ids
        return np.append(ids, np.int32(self._end))

    def _windows(self, ids: np.ndarray, line: int) -> Iterator[Sample]:
        """Windows of L + 1 ids with stride L: the last id of one is the first input of the next, so that every id but
        the first is predicted exactly once, and no window has a single id. Fewer than two ids: one empty sample."""
        for start in range(0, max(len(ids) - 1, 1), self._seq_len):
            window = ids[start : start + self._seq_len + 1]
            mask = np.ones(len(window), np.uint8)
            mask[:1] = 0
            yield Sample(window, mask, line)

    def _truncated(self, item: _Prepared, encoding: Encoding) -> Sample:
        """One sample, cut after L + 1 ids."""
        ids = np.asarray(encoding.ids, np.int32)
        mask = np.ones(len(ids), np.uint8) if item.spans is None else _inside(encoding.offsets, item.spans)
        mask[:1] = 0  # nothing comes before the first id to predict it from
        limit = self._seq_len + 1
        return Sample(ids[:limit], mask[:limit], item.row.line, truncated=len(ids) > limit)


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
