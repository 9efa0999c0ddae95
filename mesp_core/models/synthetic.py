"""Checkpoints with random weights in the exact geometry of a known model: for memory, time and gradient checks.

Written once to the cache folder, a row block at a time, 4-bit with group size 64, with the bundled tiny model's tokenizer.
Loads no MLX: affine-quantised random weights are random codes with chosen scales, so there is nothing to quantise.
"""

import glob
import json
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mesp_core.errors import MespError, UsageError
from mesp_core.files.bundled import bundled_path
from mesp_core.files.cache import cache_dir
from mesp_core.models.families import architecture_from_config
from mesp_core.models.safetensors import ITEM_SIZES

BITS, GROUP_SIZE = 4, 64
FORMAT_VERSION = 2
ROWS_AT_ONCE = 4096
ABANDONED_S = 3600  # nobody has written to it for so long: a model takes seconds
OnProgress = Callable[[str, float], None]

_QWEN2 = {
    "model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 151936, "max_position_embeddings": 32768,
    "num_key_value_heads": 2,
}  # fmt: skip
_LLAMA3 = {
    "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": 128256, "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def _sizes(hidden: int, layers: int, heads: int, mlp: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
    }


GEOMETRIES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _QWEN2 | _sizes(896, 24, 14, 4864),
    "qwen2.5-1.5b": _QWEN2 | _sizes(1536, 28, 12, 8960),
    "qwen2.5-3b": _QWEN2 | _sizes(2048, 36, 16, 11008),
    "llama-3.2-1b": _LLAMA3 | _sizes(2048, 16, 32, 8192) | {"head_dim": 64},
    "llama-3.2-3b": _LLAMA3 | _sizes(3072, 28, 24, 8192) | {"head_dim": 128},
}


def find(name: str) -> Path | None:
    """The folder of `synthetic:NAME` if it has been written already. Raises UsageError for an unknown name."""
    folder = _folder(name)
    return folder if (folder / "config.json").exists() else None


def ensure(name: str, on_progress: OnProgress | None = None) -> Path:
    """The folder of `synthetic:NAME`, written now if it is not in the cache yet.

    Raises:
        UsageError: for an unknown name, with the known ones.
        MespError: if it cannot be written.
    """
    folder = _folder(name)
    if find(name) is None:
        _remove_abandoned(folder)
        write_checkpoint(folder, GEOMETRIES[name], on_progress or (lambda message, fraction: None))
    return folder


def _folder(name: str) -> Path:
    if name not in GEOMETRIES:
        raise UsageError(f"model: synthetic:{name} is unknown; there are {', '.join('synthetic:' + n for n in GEOMETRIES)}.")
    return cache_dir() / "synthetic" / f"{name}-v{FORMAT_VERSION}"


def write_checkpoint(
    folder: Path, geometry: dict[str, Any], on_progress: OnProgress = lambda message, fraction: None
) -> None:
    """Write a random checkpoint of any geometry (config.json's fields) under a temporary name, then rename it.

    Raises:
        MespError: if the folder cannot be written; nothing is left behind.
    """
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        _write(temporary, geometry, on_progress)
        temporary.chmod(0o755)
        with suppress(FileExistsError):  # another process was faster
            temporary.rename(folder)
    except OSError as error:
        if not (folder / "config.json").exists():
            raise MespError(f"{folder}: the synthetic model cannot be written ({error.strerror}).") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed have left of `folder` in the cache: it may be gigabytes."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}-????????"):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if newest < time.time() - ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def _write(folder: Path, geometry: dict[str, Any], on_progress: OnProgress) -> None:
    tiny = bundled_path("tiny")
    tiny_config = json.loads((tiny / "config.json").read_text("utf-8"))
    config = {
        **geometry,
        "hidden_act": "silu",
        "tie_word_embeddings": geometry.get("tie_word_embeddings", True),
        "bos_token_id": tiny_config["bos_token_id"],
        "eos_token_id": tiny_config["eos_token_id"],
        "quantization": {"group_size": GROUP_SIZE, "bits": BITS},
    }
    tensors = list(_tensors(config))
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape in tensors:
        size = int(np.prod(shape)) * ITEM_SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, dtype, shape in tensors:
            _write_tensor(file, name, dtype, shape)
            on_progress("Writing random weights", header[name]["data_offsets"][1] / offset)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, safetensors type, shape) of every tensor, in the order they are written."""
    architecture = architecture_from_config(Path("config.json"), config)
    for path, (out_features, in_features, has_bias) in architecture.linears().items():
        yield f"{path}.weight", "U32", (out_features, in_features * BITS // 32)
        yield f"{path}.scales", "BF16", (out_features, in_features // GROUP_SIZE)
        yield f"{path}.biases", "BF16", (out_features, in_features // GROUP_SIZE)
        if has_bias:
            yield f"{path}.bias", "BF16", (out_features,)
    for path, size in architecture.norms().items():
        yield f"{path}.weight", "BF16", (size,)


def _write_tensor(file: BinaryIO, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    path, kind = name.rsplit(".", 1)
    # scales and biases of one matrix come from the same numbers: bias = −7.5·scale centres the 16 codes on 0
    rng = np.random.default_rng([0, zlib.crc32(f"{path}.{'groups' if kind in ('scales', 'biases') else kind}".encode())])
    if dtype == "U32":
        for start in range(0, shape[0], ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, shape[0] - start)
            file.write(rng.integers(0, 2**32, (rows, shape[1]), dtype=np.uint32).tobytes())
    elif kind in ("scales", "biases"):
        in_features = shape[1] * GROUP_SIZE
        # Codes 0…15 have a standard deviation of 4.61: the matrix gets one of 1/√in, so that activations keep their size;
        # what is added to the residual stream gets less, as in a trained model, or rounding grows from block to block.
        deviation = (0.15 if path.endswith(("o_proj", "down_proj")) else 1.0) / np.sqrt(in_features)
        scales = rng.uniform(0.7, 1.3, shape).astype(np.float32) * np.float32(deviation / 4.61)
        file.write(_bfloat16(scales if kind == "scales" else -7.5 * scales))
    elif kind == "bias":
        file.write(_bfloat16(0.1 * rng.standard_normal(shape).astype(np.float32)))
    else:  # a norm's weight
        file.write(_bfloat16(1 + 0.1 * rng.standard_normal(shape).astype(np.float32)))


def _bfloat16(values: np.ndarray) -> bytes:
    """float32 rounded to the nearest bfloat16 (ties to even), as bytes."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
