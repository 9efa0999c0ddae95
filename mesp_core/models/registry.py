"""One entry per `model_type`: how its config.json becomes an `Architecture`.

A field that is left out means what it means to mlx-lm.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import Architecture, RopeSpec


class ConfigReader:
    """A config.json with typed access; every complaint names the file and the field."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file, self.values = file, values

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._get(name, default)
        if type(value) is not int or value <= 0:
            self.fail(name, value, "a whole number above 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not value > 0:
            self.fail(name, value, "a number above 0")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._get(name, default)
        if type(value) is not bool:
            self.fail(name, value, "true or false")
        return value

    def require(self, name: str, default: Any, *allowed: Any) -> None:
        """Refuse a setting whose maths is not ours."""
        value = self.values.get(name, default)
        if value not in allowed:
            self.fail(name, value, "one of " + ", ".join(repr(a) for a in allowed))

    def fail(self, name: str, value: Any, expected: str) -> None:
        """Raise a CheckpointError on one field."""
        raise CheckpointError(f"{self.file}: {name} is {value!r}; supported is {expected}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self.file}: the field {name} is missing; is this the config.json of a language model?")
        return value


def _decoder(
    config: ConfigReader,
    biases: frozenset[str],
    default_theta: float,
    head_dim: int | None = None,
    kv_heads: int | None = None,
) -> Architecture:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = kv_heads or config.integer("num_key_value_heads")
    if heads % kv_heads:
        config.fail("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    if head_dim is None:
        head_dim = hidden // heads
        if hidden % heads:
            config.fail("hidden_size", hidden, f"a multiple of num_attention_heads ({heads})")
    if head_dim % 2:
        config.fail("head_dim", head_dim, "an even number")
    config.require("hidden_act", "silu", "silu")
    return Architecture(
        model_type=config.values["model_type"],
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        rms_norm_eps=config.real("rms_norm_eps"),
        rope=_rope(config, default_theta),
        biases=biases,
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
        max_position_embeddings=config.integer("max_position_embeddings", 2048),
    )


def _rope(config: ConfigReader, default_theta: float) -> RopeSpec:
    # Newer files put base and scaling into one `rope_parameters`, older ones into rope_theta and rope_scaling.
    scaling = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    field = "rope_parameters" if config.values.get("rope_parameters") else "rope_scaling"
    if not isinstance(scaling, Mapping):
        config.fail(field, scaling, "an object")
    inner = ConfigReader(config.file, scaling)
    theta = inner.real("rope_theta") if "rope_theta" in scaling else config.real("rope_theta", default_theta)
    traditional = config.boolean("rope_traditional", False)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeSpec(theta, traditional=traditional)
    if kind == "linear":
        return RopeSpec(theta, position_scale=1.0 / inner.real("factor"), traditional=traditional)
    if kind == "llama3":
        llama3 = (
            inner.real("factor"),
            inner.real("low_freq_factor", 1.0),
            inner.real("high_freq_factor", 4.0),
            inner.real("original_max_position_embeddings", 8192),
        )
        return RopeSpec(theta, llama3=llama3, traditional=traditional)
    config.fail(f"{field} type", kind, "default, linear or llama3")


def _qwen2(config: ConfigReader) -> Architecture:
    config.require("use_sliding_window", False, False, None)
    return _decoder(config, frozenset({"q_proj", "k_proj", "v_proj"}), default_theta=1e6)


def _llama(config: ConfigReader) -> Architecture:
    layer_types = config.values.get("layer_types") or []
    if any(kind != "full_attention" for kind in layer_types):
        config.fail("layer_types", sorted(set(layer_types)), "full_attention in every layer")
    biases: frozenset[str] = frozenset()
    if config.boolean("attention_bias", False):
        biases |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if config.boolean("mlp_bias", False):
        biases |= {"gate_proj", "up_proj", "down_proj"}
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim") if config.values.get("head_dim") is not None else None
    return _decoder(config, biases, 1e4, head_dim, config.integer("num_key_value_heads", heads))


MODEL_TYPES: dict[str, Callable[[ConfigReader], Architecture]] = {"qwen2": _qwen2, "llama": _llama}


def architecture_from_config(file: Path, values: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json describes.

    Raises:
        CheckpointError: for an unknown model_type, a missing or wrong field, or a setting that is not supported.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(f"{file}: model_type {model_type!r} is not supported; supported are {', '.join(MODEL_TYPES)}.")
    return MODEL_TYPES[model_type](ConfigReader(file, values))
