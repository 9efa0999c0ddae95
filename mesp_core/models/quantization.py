"""How each matrix of a checkpoint is quantised: as mlx-lm finds it out from config.json and the tensors' shapes.

`quantization` may have an entry for a module's path: its settings, true (those at the top), or false (plain). A module that
has none, or whose entry is under another name, is quantised if the file has scales for it, and its bits and group size are
those that the shapes tell, whatever stands at the top.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mesp_core.errors import CheckpointError
from mesp_core.models.config_reader import shown
from mesp_core.models.safetensors import TensorEntry

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DEFAULT_BITS, DEFAULT_GROUP_SIZE = 4, 64  # MLX's own: an entry does not inherit what it leaves out
SETTINGS = ("bits", "group_size", "mode")

BitsAndGroupSize = tuple[int, int]


class Quantization:
    """What one config.json says of quantisation. `values` is its `quantization`, None where there is none."""

    def __init__(self, file: Path, values: Mapping[str, Any] | None) -> None:
        self._file, self._values = file, values

    @classmethod
    def of(cls, file: Path, config: Mapping[str, Any]) -> "Quantization":
        """From a config.json's fields.

        Raises:
            CheckpointError: if another library quantised the model, or activations are to be quantised, too.
        """
        values = config.get("quantization")
        for owner in (config, values, config.get("quantization_config")):
            for field in ("quantize_activations", "quantize_input"):
                if isinstance(owner, dict) and owner.get(field):
                    raise CheckpointError(
                        f"{file}: {field} is {shown(owner[field])}; supported is false: weights alone may be quantised."
                    )
        if values is None:
            _refuse_other_libraries(file, config)
        elif not isinstance(values, dict) or not {"bits", "group_size"} <= values.keys():
            raise CheckpointError(
                f"{file}: quantization is {shown(values)}; expected an object with bits and group_size, "
                "or no such field where nothing is quantised."
            )
        return cls(file, values)

    def of_module(
        self, path: str, weight: TensorEntry | None, scales: TensorEntry | None, in_features: int
    ) -> BitsAndGroupSize | None:
        """Bits and group size of a matrix of so many columns, whose tensors the file has or not; None: it is plain.

        Raises:
            CheckpointError: if what is said of it and what is there do not fit, or are not supported.
        """
        if self._values is None or path not in self._values:
            return None if scales is None else self._from_shapes(path, weight, scales, in_features)
        own = self._values[path]
        if not own:
            if scales is not None:
                raise CheckpointError(
                    f"{self._file}: quantization of {path} is {shown(own)}, which means plain, but {scales.file.name} "
                    "has scales for it."
                )
            return None
        if own is True:
            settings = {name: self._values.get(name) for name in SETTINGS if name in self._values}
        elif isinstance(own, dict):
            settings = own
        else:
            self._fail(path, own, "bits and group_size, true or false")
        if unknown := sorted(settings.keys() - {*SETTINGS, "quantize_input"}):
            self._fail(path, own, f"bits, group_size and mode, but not {unknown[0]}")
        if settings.get("quantize_input"):
            self._fail(path, own, "weights that are quantised, not inputs")
        mode = settings.get("mode", "affine")
        if mode != "affine":
            self._refuse_mode(path, mode)
        bits, group_size = settings.get("bits"), settings.get("group_size")
        bits = DEFAULT_BITS if bits is None else bits
        group_size = DEFAULT_GROUP_SIZE if group_size is None else group_size
        self._check(path, bits, group_size, in_features)
        return bits, group_size

    def refuse_entries_for(self, paths: Iterable[str]) -> None:
        """Raises CheckpointError if one of these modules, which cannot be quantised, is to be."""
        for path in paths:
            if self._values is not None and self._values.get(path):
                self._fail(path, self._values[path], "false, because it is no matrix")

    def _from_shapes(self, path: str, weight: TensorEntry | None, scales: TensorEntry, in_features: int) -> BitsAndGroupSize:
        if self._values is None:
            raise CheckpointError(
                f"{self._file}: {path} is quantised, but there is no quantization with bits and group_size."
            )
        if scales.dtype == "U8":
            self._refuse_mode(path, self._values.get("mode", "of scales of 8 bits"))
        if weight is None or not weight.shape or not scales.shape or not scales.shape[-1]:
            raise CheckpointError(f"{scales.file}: tensor {path}.weight is missing or empty, but there are scales for it.")
        group_size, bits = in_features // scales.shape[-1], weight.shape[-1] * 32 // in_features
        self._check(path, bits, group_size, in_features)
        return bits, group_size

    def _check(self, path: str, bits: object, group_size: object, in_features: int) -> None:
        whole = type(bits) is int and type(group_size) is int
        if not whole or bits not in BITS or group_size not in GROUP_SIZES or in_features % group_size:
            raise CheckpointError(
                f"{self._file}: quantization of {path} has bits {shown(bits)} and group_size {shown(group_size)} for "
                f"{in_features} inputs; supported are bits {', '.join(map(str, BITS))} and a group_size of "
                f"{', '.join(map(str, GROUP_SIZES))} that divides the inputs."
            )

    def _refuse_mode(self, path: str, mode: object) -> None:
        raise CheckpointError(
            f"{self._file}: quantization mode {shown(mode)} of {path} is not supported; supported is 'affine'."
        )

    def _fail(self, path: str, own: object, expected: str) -> None:
        raise CheckpointError(f"{self._file}: quantization of {path} is {shown(own)}; supported is {expected}.")


def _refuse_other_libraries(file: Path, config: Mapping[str, Any]) -> None:
    text_config = config.get("text_config")
    inner = text_config.get("quantization_config") if isinstance(text_config, dict) else None
    foreign = config.get("quantization_config", inner)
    if foreign:
        known = foreign if isinstance(foreign, dict) else {}
        method = known.get("quant_method") or known.get("format") or known.get("mode") or "another library"
    elif "quantization_config" not in config and (file.parent / "hf_quant_config.json").exists():
        method = "ModelOpt (hf_quant_config.json)"
    else:
        return
    raise CheckpointError(
        f"{file}: quantised with {shown(method).strip(chr(39))}; only MLX's affine quantisation is supported. "
        "Use a conversion from mlx-community, or convert the original with mlx_lm.convert."
    )
