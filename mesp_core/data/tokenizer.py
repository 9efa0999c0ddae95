"""A model folder's tokenizer exactly as mlx-lm has it.

What a tokenizer.json means is decided by the class that transformers loads it with: some build another normaliser or
pre-tokenizer than the file describes, or add tokens. So mlx-lm loads it once for each model, which takes seconds. What it
has then is described in one file, from which every later process reads the same tokenizer without transformers.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mesp_core.errors import CheckpointError
from mesp_core.files.json_file import LARGEST, read_object
from mesp_core.files.whole_file import write_whole
from mesp_core.processes.open_files import limits_as_they_can_be

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
READ_BY_TRANSFORMERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
LARGEST_TOKENIZER = 16 * LARGEST  # bytes; Gemma's takes 33 MB
# Texts on which the description must agree with the tokenizer it describes.
PROBES = (
    "Hello, world! It's 2024-12-31, 1234567.89 €",
    "  two  spaces\n\n\tand a tab \r\n",
    "naïve café Ⅷ ﬁ 日本語 한국어 العربية 🙂👩‍🚀",
    "def f(x):\n    return x**2  # _private__ <|im_start|>user</s>[INST]<bos>",
    "",
)


@dataclass(frozen=True)
class Description:
    """All that mlx-lm's tokenizer consists of.

    `tokenizer` is a tokenizer.json's text, which cannot say `split_special_tokens`: whether special tokens that stand in a
    text are split like other text. `special_tokens` is what templates get (bos_token, eos_token, ...); `templates`
    the chat templates by name, the usual one being "default"; `template_options` what mlx-lm passes to each of them; `end`
    the id that ends a text.
    """

    tokenizer: str
    split_special_tokens: bool
    special_tokens: dict[str, str]
    templates: dict[str, str]
    template_options: dict[str, Any]
    end: int | None

    def load(self) -> Tokenizer:
        """The tokenizer, without any truncation or padding its file asks for, and with offsets that count spaces."""
        definition = json.loads(self.tokenizer)
        _keep_spaces(definition.get("post_processor"))
        tokenizer = Tokenizer.from_str(json.dumps(definition))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = self.split_special_tokens
        return tokenizer


def describe(model_dir: Path, file: Path | None = None) -> Description:
    """The tokenizer of `model_dir`; from `file`, which is written if it is not there.

    Raises:
        CheckpointError: the tokenizer is missing, broken, or of a class that cannot be described.
        MespError: `file` cannot be written.
    """
    if file is not None and file.is_file():
        try:
            return Description(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            pass  # damaged: made again
    description = _as_mlx_lm_has_it(model_dir)
    if file is not None:
        write_whole(file, json.dumps(asdict(description), ensure_ascii=False))
    return description


def _as_mlx_lm_has_it(model_dir: Path) -> Description:
    if not any((model_dir / name).is_file() for name in VOCABULARIES):
        path = model_dir / VOCABULARIES[0]
        raise CheckpointError(f"{path} does not exist; the model folder needs the tokenizer that belongs to it.")
    for name in READ_BY_TRANSFORMERS:  # says what is wrong with them better than transformers does
        if (model_dir / name).is_file():
            read_object(model_dir / name, LARGEST_TOKENIZER)
    with limits_as_they_can_be():
        from mlx_lm.tokenizer_utils import load  # slow to import: imports transformers

    try:
        loaded = load(model_dir)
    except Exception as error:  # what transformers and tokenizers make of foreign files is any error at all
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")
        raise CheckpointError(
            f"{model_dir / 'tokenizer.json'}, or what stands beside it, cannot be loaded by mlx-lm ({reason}); "
            "download the model again."
        ) from None
    inner = loaded._tokenizer
    backend = getattr(inner, "backend_tokenizer", None)
    refused = f"{model_dir}: the tokenizer class {type(inner).__name__} "
    if not isinstance(backend, Tokenizer):
        raise CheckpointError(f"{refused}has no description as a tokenizer.json, so its ids cannot be had here.")
    if loaded._chat_template is not None or type(inner).__module__.partition(".")[0] != "transformers":
        raise CheckpointError(f"{refused}writes chats by code of its own, which is not supported here.")
    description = Description(
        tokenizer=backend.to_str(),
        split_special_tokens=inner.split_special_tokens,
        special_tokens=dict(inner.special_tokens_map),
        templates=_templates(inner.chat_template),
        template_options={loaded._thinking_kwarg: loaded.has_thinking},
        end=_end_of_text(model_dir, inner.eos_token_id),
    )
    ours = description.load()
    for text in (*PROBES, " and ".join(inner.added_tokens_encoder)):
        for special in (True, False):
            if ours.encode(text, add_special_tokens=special).ids != inner.encode(text, add_special_tokens=special):
                raise CheckpointError(f"{refused}gives other ids than its description, so it is not supported here.")
    return description


def _templates(templates: str | dict[str, str] | None) -> dict[str, str]:
    if templates is None:
        return {}
    return {"default": templates} if isinstance(templates, str) else dict(templates)


def _end_of_text(model_dir: Path, end: int | None) -> int | None:
    """The tokenizer's own, else the first eos_token_id of config.json or generation_config.json."""
    for name in ("config.json", "generation_config.json"):
        if end is not None:
            return end
        path = model_dir / name
        end = read_object(path).get("eos_token_id") if path.is_file() else None
        if isinstance(end, list):
            end = end[0] if end else None
        if end is not None and (type(end) is not int or end < 0):
            raise CheckpointError(f'{path}: "eos_token_id" is {end!r}; expected a token id or a list of them.')
    return end


def _keep_spaces(post_processor: Any) -> None:
    """Let offsets count a token's leading space, which may lie in the prompt or the completion; ids stay the same."""
    if isinstance(post_processor, dict):
        if "trim_offsets" in post_processor:
            post_processor["trim_offsets"] = False
        for part in post_processor.get("processors") or ():
            _keep_spaces(part)
