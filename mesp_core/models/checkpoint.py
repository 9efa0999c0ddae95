"""A checkpoint folder in mlx-community layout, opened and judged without loading MLX or any weights.

After `open_checkpoint` returns, every tensor that a run needs is known to be there, whole, with the right type and shape.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mesp_core.errors import CheckpointError, UsageError
from mesp_core.files.json_file import read_object
from mesp_core.models.architecture import EMBEDDING, Architecture
from mesp_core.models.config_reader import shown
from mesp_core.models.families import architecture_from_config
from mesp_core.models.quantization import Quantization
from mesp_core.models.safetensors import TensorEntry, read_header

FLOATS = ("F32", "F16", "BF16")
WEIGHT_FILES = "model*.safetensors"
ROTARY = "self_attn.rotary_emb.inv_freq"  # a table in older files, which nothing reads


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
        return matrices + biases + sum(self.architecture.norms().values())

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
    config = read_object(config_file)
    if config.get("model_file") is not None:
        raise CheckpointError(f"{config_file}: model_file asks to run code from the model folder, which is never done.")
    architecture = architecture_from_config(config_file, config)
    quantization = Quantization.of(config_file, config)
    entries = _entries(folder)
    head = entries.pop("lm_head.weight", None) if architecture.tie_word_embeddings else None
    if head is not None and "tie_word_embeddings" not in config:
        raise CheckpointError(
            f"{config_file}: tie_word_embeddings is left out, which to mlx-lm means true, but {head.file.name} has "
            "lm_head.weight. Write true (this head is not used) or false (it is)."
        )
    linears = {
        path: _linear(folder, entries, quantization, path, *shape_and_bias)
        for path, shape_and_bias in architecture.linears().items()
    }
    norms = {path: _norm(folder, entries, path, size) for path, size in architecture.norms().items()}
    quantization.refuse_entries_for(norms)
    _refuse_unused(entries, linears.values(), norms.values())
    files = {entry.file for linear in linears.values() for entry in linear.tensors.values()}
    files |= {entry.file for entry in norms.values()}
    return Checkpoint(folder, architecture, linears, norms, {file: _fingerprint(file) for file in files})


def _fingerprint(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


def _entries(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the folder, as mlx-lm finds them: in all model*.safetensors, whatever an index says."""
    there = {file.name for file in folder.glob(WEIGHT_FILES)}
    if not there:
        raise CheckpointError(
            f"{folder}: no {WEIGHT_FILES} file in this folder. Models in another format must be converted first, "
            "for example with mlx_lm.convert."
        )
    index_file = folder / "model.safetensors.index.json"
    weight_map = _weight_map(index_file) if index_file.exists() else {}
    entries: dict[str, TensorEntry] = {}
    for name in sorted(there | set(weight_map.values())):
        for tensor, entry in read_header(folder / name).items():
            if ROTARY in tensor:
                continue
            if tensor in entries:
                raise CheckpointError(
                    f"{folder}: tensor {tensor} is in both {entries[tensor].file.name} and {name}, and mlx-lm takes either. "
                    "Remove the file that does not belong to the model."
                )
            entries[tensor] = entry
    for tensor, name in weight_map.items():
        if tensor in entries and entries[tensor].file.name != name:
            raise CheckpointError(f"{folder / name}: tensor {tensor} is missing; {index_file.name} says that it is here.")
    return entries


def _weight_map(index_file: Path) -> dict[str, str]:
    """Tensor -> file, each of which mlx-lm would load."""
    weight_map = read_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index_file}: no weight_map from tensor to file name.")
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index_file}: {shown(name)} is not the name of a file in this folder.")
        if not fnmatchcase(name, WEIGHT_FILES):
            raise CheckpointError(f"{index_file}: {shown(name)} is not called {WEIGHT_FILES}, which is what mlx-lm loads.")
    return weight_map


def _refuse_unused(entries: Mapping[str, TensorEntry], linears: Iterable[LinearEntry], norms: Iterable[TensorEntry]) -> None:
    used = {entry.name for linear in linears for entry in linear.tensors.values()} | {entry.name for entry in norms}
    unused = sorted(entries.keys() - used)
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise CheckpointError(
            f"{entries[unused[0]].file}: tensor {unused[0]} is there{more}, but config.json describes a model without it."
        )


def _linear(
    folder: Path,
    entries: Mapping[str, TensorEntry],
    quantization: Quantization,
    path: str,
    out_features: int,
    in_features: int,
    has_bias: bool,
) -> LinearEntry:
    tensors, bits, group_size = {}, None, None
    found = quantization.of_module(path, entries.get(f"{path}.weight"), entries.get(f"{path}.scales"), in_features)
    if found is not None:
        bits, group_size = found
        groups = (out_features, in_features // group_size)
        tensors["weight"] = _tensor(folder, entries, f"{path}.weight", (out_features, in_features * bits // 32), ("U32",))
        tensors["scales"] = _tensor(folder, entries, f"{path}.scales", groups, FLOATS)
        tensors["biases"] = _tensor(folder, entries, f"{path}.biases", groups, FLOATS)
    else:
        tensors["weight"] = _tensor(folder, entries, f"{path}.weight", (out_features, in_features), FLOATS)
    if has_bias:
        tensors["bias"] = _tensor(folder, entries, f"{path}.bias", (out_features,), FLOATS)
    return LinearEntry(path, out_features, in_features, bits, group_size, tensors)


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
