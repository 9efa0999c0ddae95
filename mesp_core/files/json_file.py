"""Reading a JSON object out of a model folder, whose content nobody vouches for: a sentence, whatever it holds."""

import json
from pathlib import Path
from typing import Any

from mesp_core.errors import CheckpointError

# Far above what any model needs (a header of 100,000 tensors); what is parsed takes up to twenty times as much memory.
LARGEST = 16 * 1024 * 1024


def read_object(file: Path, largest: int = LARGEST) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        CheckpointError: if the file is missing, cannot be read, is larger than `largest` bytes, or is no JSON object.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(largest + 1)
    except FileNotFoundError as error:
        raise CheckpointError(f"{file}: missing; a model folder needs it beside its safetensors files.") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error
    if len(text) > largest:
        raise CheckpointError(f"{file}: larger than {largest:,} bytes, which no {file.name} is. Download or copy it again.")
    return parse_object(text, str(file))


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object that UTF-8 bytes hold; `what` names them in complaints.

    Raises:
        CheckpointError: if it is none, or is nested deeper than any model's.
    """
    try:
        values = json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise CheckpointError(f"{what}: nested too deeply to be a model's. Download or copy it again.") from error
    except MemoryError as error:
        raise CheckpointError(f"{what}: not enough memory to read it.") from error
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise CheckpointError(f"{what}: not valid JSON ({error}).") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{what}: holds {type(values).__name__}, expected a JSON object.")
    return values
