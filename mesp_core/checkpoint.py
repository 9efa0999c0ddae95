"""A checkpoint folder in mlx-community layout, opened and judged without loading MLX or any weights.

After `open_checkpoint` returns, every tensor that a run needs is known to be there, whole, with the right type and shape.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesp_core.errors import CheckpointError, UsageError
from mesp_core.models.architecture import EMBEDDING, Architecture
from mesp_core.models.registry import architecture_from_config
from mesp_core.safetensors import TensorEntry, read_header

FLOATS = ("F32", "F16", "BF16")
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class LinearEntry:
    """One matrix: (out_features, in_features), how it is quantised (bits None: plain) and where its tensors lie."""

    path: str
    out_features: int
    in_features: int
    bits: int | None
    group_size: int | None
    tensors: Mapping[str, TensorEntry]  # weight, and scales, biases, bias where there are any

    @property
    def name(self) -> str:
        """The last part of the path: `q_proj`, `lm_head`."""
        return self.path.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: architecture, and where every tensor lies."""

    folder: Path
    architecture: Architecture
    linears: Mapping[str, LinearEntry]
    norms: Mapping[str, TensorEntry]
    fingerprints: Mapping[Path, tuple[int, int]]  # file -> (size, mtime in ns) when opened

    @property
    def parameters(self) -> int:
        """How many numbers the model has, quantised ones counted one by one."""
        matrices = sum(linear.out_features * linear.in_features for linear in self.linears.values())
        biases = sum(linear.out_features for linear in self.linears.values() if "bias" in linear.tensors)
        return matrices + biases + len(self.norms) * self.architecture.hidden_size

    @property
    def size_bytes(self) -> int:
        """The size on disk of the safetensors files that hold the model's tensors."""
        return sum(size for size, _ in self.fingerprints.values())

    @property
    def bits(self) -> int | None:
        """Bits of most of the blocks' projections; None if these are plain."""
        return self._usual_quantization[0]

    @property
    def group_size(self) -> int | None:
        """The group size of most of the blocks' projections; None if these are plain."""
        return self._usual_quantization[1]

    @property
    def _usual_quantization(self) -> tuple[int | None, int | None]:
        blocks = (linear for linear in self.linears.values() if linear.path.startswith("model.layers."))
        return Counter((linear.bits, linear.group_size) for linear in blocks).most_common(1)[0][0]

    @property
    def float_dtype(self) -> str:
        """The type the checkpoint keeps its unquantised numbers in: F32, F16 or BF16."""
        return self.norms["model.norm"].dtype

    @property
    def head(self) -> LinearEntry:
        """The output projection: the embedding itself where the two are tied."""
        return self.linears[EMBEDDING if self.architecture.tie_word_embeddings else "lm_head"]

    def check_unchanged(self, file: Path) -> None:
        """Raises CheckpointError if a file was removed, replaced or cut short since it was opened."""
        if _fingerprint(file) != self.fingerprints[file]:
            raise CheckpointError(f"{file}: changed or removed while it was being read. Start again with a whole file.")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors files.

    Raises:
        UsageError: if the folder does not exist.
        CheckpointError: naming file, tensor and what was expected.
    """
    if not folder.is_dir():
        raise UsageError(f"model: {folder} is not a folder.")
    config_file = folder / "config.json"
    config = _read_json(config_file)
    if config.get("model_file") is not None:
        raise CheckpointError(f"{config_file}: model_file asks to run code from the model folder, which is never done.")
    architecture = architecture_from_config(config_file, config)
    entries = _entries(folder)
    quantization = _quantization(config_file, config)
    linears = {
        path: _linear(folder, entries, quantization, path, *shape_and_bias)
        for path, shape_and_bias in architecture.linears().items()
    }
    norms = {path: _norm(folder, entries, path, architecture.hidden_size) for path in architecture.norms()}
    files = {entry.file for linear in linears.values() for entry in linear.tensors.values()}
    files |= {entry.file for entry in norms.values()}
    return Checkpoint(folder, architecture, linears, norms, {file: _fingerprint(file) for file in files})


def _fingerprint(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file}: missing; a model folder needs it beside its safetensors files.") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error}).") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: holds {type(values).__name__}, expected a JSON object.")
    return values


def _entries(folder: Path) -> dict[str, TensorEntry]:
    index_file = folder / "model.safetensors.index.json"
    if index_file.exists():
        weight_map = _read_json(index_file).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f"{index_file}: no weight_map from tensor to file name.")
        names = sorted(set(weight_map.values()))
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"{index_file}: {name!r} is not the name of a file in this folder.")
    else:
        weight_map = {}
        names = sorted(file.name for file in folder.glob("model*.safetensors"))
        if not names:
            raise CheckpointError(
                f"{folder}: no model*.safetensors file in this folder. Models in another format must be converted first, "
                "for example with mlx_lm.convert."
            )
    entries: dict[str, TensorEntry] = {}
    for name in names:
        entries |= {
            tensor: entry for tensor, entry in read_header(folder / name).items() if weight_map.get(tensor, name) == name
        }
    for tensor, name in weight_map.items():
        if tensor not in entries:
            raise CheckpointError(f"{folder / name}: tensor {tensor} is missing; {index_file.name} says that it is here.")
    return entries


def _quantization(config_file: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    quantization = config.get("quantization") or {}
    if not isinstance(quantization, dict):
        raise CheckpointError(
            f"{config_file}: quantization is {quantization!r}; expected an object with bits and group_size."
        )
    foreign = config.get("quantization_config")
    if not quantization and isinstance(foreign, dict) and foreign:
        method = foreign.get("quant_method") or foreign.get("format") or foreign.get("mode")
        raise CheckpointError(
            f"{config_file}: quantised with {method or 'another library'}; only MLX's affine quantisation is supported. "
            "Use a conversion from mlx-community, or convert the original with mlx_lm.convert."
        )
    return quantization


def _linear(
    folder: Path,
    entries: Mapping[str, TensorEntry],
    quantization: Mapping[str, Any],
    path: str,
    out_features: int,
    in_features: int,
    has_bias: bool,
) -> LinearEntry:
    tensors, bits, group_size = {}, None, None
    if f"{path}.scales" in entries:
        bits, group_size = _bits_and_group_size(folder, quantization, path, in_features)
        groups = (out_features, in_features // group_size)
        tensors["weight"] = _tensor(folder, entries, f"{path}.weight", (out_features, in_features * bits // 32), ("U32",))
        tensors["scales"] = _tensor(folder, entries, f"{path}.scales", groups, FLOATS)
        tensors["biases"] = _tensor(folder, entries, f"{path}.biases", groups, FLOATS)
    else:
        tensors["weight"] = _tensor(folder, entries, f"{path}.weight", (out_features, in_features), FLOATS)
    if has_bias:
        tensors["bias"] = _tensor(folder, entries, f"{path}.bias", (out_features,), FLOATS)
    elif f"{path}.bias" in entries:
        file = entries[f"{path}.bias"].file
        raise CheckpointError(f"{file}: tensor {path}.bias is there, but config.json describes a model without it.")
    return LinearEntry(path, out_features, in_features, bits, group_size, tensors)


def _bits_and_group_size(folder: Path, quantization: Mapping[str, Any], path: str, in_features: int) -> tuple[int, int]:
    file = folder / "config.json"
    own = quantization.get(path)
    settings = own if isinstance(own, dict) else quantization
    mode = settings.get("mode", quantization.get("mode", "affine"))
    if mode != "affine":
        raise CheckpointError(f"{file}: quantization mode {mode!r} of {path} is not supported; supported is 'affine'.")
    bits, group_size = settings.get("bits"), settings.get("group_size")
    if bits is None or group_size is None:
        raise CheckpointError(f"{file}: {path} is quantised, but quantization gives no bits and group_size for it.")
    whole = type(bits) is int and type(group_size) is int
    if not whole or bits not in BITS or group_size not in GROUP_SIZES or in_features % group_size:
        raise CheckpointError(
            f"{file}: quantization of {path} has bits {bits!r} and group_size {group_size!r} for {in_features} inputs; "
            f"supported are bits {', '.join(map(str, BITS))} and a group_size of {', '.join(map(str, GROUP_SIZES))} "
            "that divides the inputs."
        )
    return bits, group_size


def _norm(folder: Path, entries: Mapping[str, TensorEntry], path: str, hidden_size: int) -> TensorEntry:
    return _tensor(folder, entries, f"{path}.weight", (hidden_size,), FLOATS)


def _tensor(
    folder: Path, entries: Mapping[str, TensorEntry], name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]
) -> TensorEntry:
    entry = entries.get(name)
    expected = f"{'/'.join(dtypes)} {list(shape)}"
    if entry is None:
        raise CheckpointError(f"{folder}: tensor {name} is missing; expected {expected} as config.json describes the model.")
    if entry.shape != shape or entry.dtype not in dtypes:
        raise CheckpointError(
            f"{entry.file}: tensor {name} is {entry.dtype} {list(entry.shape)}; config.json asks for {expected}."
        )
    return entry
