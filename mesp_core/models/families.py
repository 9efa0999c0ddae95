"""One entry per `model_type`: how its config.json becomes an `Architecture`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import Architecture
from mesp_core.models.config_reader import ConfigReader, shown
from mesp_core.models.rope_config import rope_spec

MOST_LAYERS = 10_000  # what is listed for each must not fill the memory before the first tensor is found missing


def _decoder(
    config: ConfigReader,
    biases: frozenset[str],
    default_theta: float,
    longest: int | None,
    head_dim: int | None = None,
    kv_heads: int | None = None,
) -> Architecture:
    """`longest`: the positions of a file that does not say them; None: not known."""
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
    layers = config.integer("num_hidden_layers", largest=MOST_LAYERS)
    _require_full_attention(config, layers)
    says_none = config.values.get("max_position_embeddings", longest) is None
    longest = None if says_none else config.integer("max_position_embeddings", longest)
    return Architecture(
        model_type=config.values["model_type"],
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        rms_norm_eps=config.real("rms_norm_eps"),
        rope=rope_spec(config, default_theta),
        biases=biases,
        tie_word_embeddings=config.boolean("tie_word_embeddings", True, null=False),
        max_position_embeddings=longest,
    )


def _require_full_attention(config: ConfigReader, layers: int) -> None:
    """mlx-lm's llama has as many layers as `layer_types` names, its qwen2 does not look at it."""
    kinds = config.values.get("layer_types")
    if kinds is not None and kinds != ["full_attention"] * layers:
        config.fail("layer_types", kinds, f"full_attention for each of num_hidden_layers ({layers})")


def _qwen2(config: ConfigReader) -> Architecture:
    config.require("use_sliding_window", False, False, None)
    architecture = _decoder(config, frozenset({"q_proj", "k_proj", "v_proj"}), default_theta=1e6, longest=32768)
    config.require("head_dim", None, None, architecture.head_dim)  # which mlx-lm does not look at
    return architecture


def _llama(config: ConfigReader) -> Architecture:
    biases: frozenset[str] = frozenset()
    if config.boolean("attention_bias", False, null=False):
        biases |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if config.boolean("mlp_bias", False, null=False):
        biases |= {"gate_proj", "up_proj", "down_proj"}
    heads = config.integer("num_attention_heads")
    head_dim, kv_heads = (
        config.integer(name) if config.values.get(name) is not None else None for name in ("head_dim", "num_key_value_heads")
    )
    return _decoder(config, biases, default_theta=1e4, longest=None, head_dim=head_dim, kv_heads=kv_heads or heads)


MODEL_TYPES: dict[str, Callable[[ConfigReader], Architecture]] = {"qwen2": _qwen2, "llama": _llama}


def architecture_from_config(file: Path, values: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json describes.

    Raises:
        CheckpointError: for an unknown model_type, a missing or wrong field, or a setting that is not supported.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"{file}: model_type {shown(model_type)} is not supported; supported are {', '.join(MODEL_TYPES)}."
        )
    return MODEL_TYPES[model_type](ConfigReader(file, values))
