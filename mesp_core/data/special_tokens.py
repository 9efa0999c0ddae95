"""What a model folder says about its special tokens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesp_core.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty when there is no such file.

    Raises:
        CheckpointError: the file is there but holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download the model again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; expected a JSON object.")
    return value


def special_tokens(model_dir: Path) -> dict[str, str]:
    """The special tokens of tokenizer_config.json by the field's name, without those it leaves out or sets to null.

    Raises:
        CheckpointError: one is neither a string nor an object with a string "content".
    """
    path = model_dir / TOKENIZER_CONFIG
    config = read_object(path)
    found = {}
    for name in NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise CheckpointError(f'{path}: "{name}" is {value!r}; expected a string or an object with "content".')
        found[name] = value
    return found


def end_of_text(model_dir: Path, tokenizer: "Tokenizer") -> int | None:
    """The id that ends a text: eos_token of tokenizer_config.json, else the first eos_token_id of config.json or
    generation_config.json, else None.

    Raises:
        CheckpointError: a file or an entry cannot be read.
    """
    token = special_tokens(model_dir).get("eos_token")
    if token is not None and (known := tokenizer.token_to_id(token)) is not None:
        return known
    for name in ("config.json", "generation_config.json"):
        path = model_dir / name
        value = read_object(path).get("eos_token_id")
        if isinstance(value, list):
            value = value[0] if value else None
        if value is None:
            continue
        if type(value) is not int or value < 0:
            raise CheckpointError(f'{path}: "eos_token_id" is {value!r}; expected a token id or a list of them.')
        return value
    return None
