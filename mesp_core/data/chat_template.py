"""Chat templates: from messages to the text a model was trained on, and the parts of it the model itself would write.

A template is a program in a model folder, so it runs in Jinja's sandbox with bounded loops, repetition and output.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mesp_core.data.rows import Message, Tool
from mesp_core.errors import CheckpointError, DataError

MAX_TEMPLATE_TEXT = 1_000_000  # characters a template may add to those of the messages
MAX_GROWTH = 20  # ... and how often it may repeat the messages themselves
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning, the one that counts first

Span = tuple[int, int]


class _TemplateMessage(Exception):
    """What a template says through raise_exception."""


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`: marks assistant text in some templates; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own class attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox (it bounds `range`) that bounds `*` and `**` too."""

    intercepted_binops = frozenset(("*", "**"))

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # Jinja would render it as nothing: no honest template gets here, so say it at once.
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        limit = MAX_TEMPLATE_TEXT
        if operator == "**":
            if not (isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(right) <= 64):
                raise SecurityError("a power with an exponent above 64")
        else:
            for many, times in ((left, right), (right, left)):
                if isinstance(many, (str, bytes, list, tuple)) and isinstance(times, int) and len(many) * times > limit:
                    raise SecurityError(f"a repetition to more than {limit} items")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str,
        *,
        origin: Path | str,
        special_tokens: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Compile `source`. `origin` is named in errors; `special_tokens` and `options` are the template's to use.

        Raises:
            CheckpointError: it is not valid Jinja.
        """
        self._origin = origin
        self._variables = {**(special_tokens or {}), **(options or {})}
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"The chat template of {origin} is not valid Jinja: line {error.lineno}: {error.message}."
            ) from None
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise CheckpointError(f"The chat template of {origin} cannot be compiled: {error}.") from None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of `messages` and `tools`; with `add_generation_prompt`, followed by the header of an assistant turn.

        Raises:
            DataError: the template refuses these messages or fails on them; names the origin, not the data file.
            CheckpointError: the template tried what the sandbox forbids.
        """
        limit = MAX_TEMPLATE_TEXT + MAX_GROWTH * len(json.dumps([messages, tools]))
        variables = dict(
            messages=[_as_templates_see_it(message) for message in messages],
            tools=None if tools is None else list(tools),
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._variables,
        )
        pieces, length = [], 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                length += len(piece)
                if length > limit:
                    raise SecurityError(f"more than {limit} characters of output")
        except (SecurityError, OverflowError, MemoryError) as error:  # OverflowError: the sandbox's bound on range
            raise CheckpointError(
                f"The chat template of {self._origin} was stopped, it tried something unsafe: {_reason(error)}. "
                "Use a model from a source you trust."
            ) from None
        except Exception as error:  # a template is a program: it can fail in any way a program can
            verb = "refuses" if isinstance(error, _TemplateMessage) else "fails on"
            raise DataError(f"the chat template of {self._origin} {verb} these messages: {_reason(error)}.") from None
        return "".join(pieces)

    def render_with_spans(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> tuple[str, list[Span]]:
        """The text of `messages` and the character spans (start, end) of it that the assistant writes.

        A span starts after the header of an assistant turn and holds all the template writes for that turn: the content
        and the end-of-turn marker. It is found by rendering the messages up to the turn with the generation prompt and
        up to and including the turn without: each must be a prefix of the next longer text.

        Raises:
            DataError: as `render`, or the prefixes do not fit (templates that drop or rewrite earlier turns).
            CheckpointError: as `render`.
        """
        text = self.render(messages, tools)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                before = self.render(messages[:index], tools, add_generation_prompt=True)
                after = self.render(messages[: index + 1], tools)
            except DataError as error:
                raise self._no_spans(index, str(error).removesuffix(".")) from None
            if not after.startswith(before):
                raise self._no_spans(index, "its text does not begin with the prompt that leads to it")
            if not text.startswith(after):
                raise self._no_spans(index, "later messages change the text of earlier ones")
            spans.append((len(before), len(after)))
        return text, spans

    def _no_spans(self, index: int, reason: str) -> DataError:
        return DataError(
            f"loss_on=completion can't be used with the chat template of {self._origin}: the text of message "
            f"{index + 1} cannot be told from the rest, because {reason}. Use loss_on=all."
        )


def _as_templates_see_it(message: Message) -> Message:
    """A message as transformers hands it over: without what is null, its reasoning under each name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning} | message | {"reasoning_content": reasoning}


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).removesuffix(".")


def _raise_exception(message: object) -> None:
    raise _TemplateMessage(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes <, > and & for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
