"""Writing a file whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mesp_core.errors import MespError


def write_whole(file: Path, *parts: str | bytes | Iterable[str]) -> None:
    """Write texts, bytes, or streams of texts, under a temporary name beside `file`, then give them its name.

    Text is written in UTF-8, its line ends as they are.

    Raises:
        MespError: if that fails; what was there before is then still there, and nothing else.
    """
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}-", delete=False) as out:
            temporary = Path(out.name)
            for part in parts:
                for piece in [part] if isinstance(part, str | bytes) else part:
                    out.write(piece if isinstance(piece, bytes) else piece.encode())
        temporary.chmod(0o644)  # a temporary file is its owner's alone
        os.replace(temporary, file)
    except OSError as error:
        raise MespError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
