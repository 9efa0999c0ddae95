"""config.json → Architecture: what mlx-lm reads, read alike, and every refusal by file, field and value."""

from pathlib import Path

import pytest
from mlx_lm.models import llama, qwen2

from mesp_core.errors import CheckpointError
from mesp_core.models.architecture import PROJECTIONS, RopeSpec
from mesp_core.models.families import architecture_from_config

FILE = Path("some/config.json")
MISSING = object()


def read(config, **changes):
    values = {name: value for name, value in (config | changes).items() if value is not MISSING}
    return architecture_from_config(FILE, values)


def refused(config, said, **changes):
    with pytest.raises(CheckpointError) as caught:
        read(config, **changes)
    for part in (str(FILE), *said):
        assert part in str(caught.value)


def test_qwen2(qwen2_config):
    found = read(qwen2_config())
    assert (found.model_type, found.hidden_size, found.intermediate_size, found.num_hidden_layers) == (
        "qwen2",
        64,
        96,
        2,
    )
    assert (found.num_attention_heads, found.num_key_value_heads, found.head_dim) == (4, 2, 16)
    assert (found.vocab_size, found.rms_norm_eps, found.tie_word_embeddings) == (300, 1e-6, True)
    assert found.rope == RopeSpec(1e6)
    assert found.biases == {"q_proj", "k_proj", "v_proj"}
    assert "lm_head" not in found.linears()


def test_llama(llama_config):
    found = read(llama_config())
    assert (found.head_dim, found.tie_word_embeddings, found.biases) == (24, False, frozenset())
    assert found.rope == RopeSpec(10000.0, llama3=(8.0, 1.0, 4.0, 64.0))
    assert found.linears()["lm_head"] == (301, 64, False)
    assert found.projection_shape("q_proj") == (96, 64) and found.projection_shape("o_proj") == (64, 96)
    assert found.projection_shape("k_proj") == found.projection_shape("v_proj") == (48, 64)
    assert found.projection_shape("down_proj") == (64, 128)


def test_llamas_biases(llama_config):
    assert read(llama_config(), attention_bias=True).biases == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert read(llama_config(), mlp_bias=True).biases == {"gate_proj", "up_proj", "down_proj"}
    linears = read(llama_config(), attention_bias=True).linears()
    assert linears["model.layers.1.self_attn.o_proj"] == (64, 96, True)
    assert linears["model.layers.1.mlp.up_proj"] == (128, 64, False)


def test_every_module_of_mlx_lms_model_is_named(folder):
    """Names and shapes of matrices and norms, against the model that mlx-lm builds from the same file."""
    import json

    from mlx.utils import tree_flatten

    config = json.loads((folder / "config.json").read_text())
    module = {"qwen2": qwen2, "llama": llama}[config["model_type"]]
    theirs = dict(tree_flatten(module.Model(module.ModelArgs.from_dict(config)).parameters()))
    found = architecture_from_config(folder / "config.json", config)
    ours = {}
    for path, (out_features, in_features, has_bias) in found.linears().items():
        ours[f"{path}.weight"] = (out_features, in_features)
        if has_bias:
            ours[f"{path}.bias"] = (out_features,)
    ours |= {f"{path}.weight": (size,) for path, size in found.norms().items()}
    assert ours == {name: array.shape for name, array in theirs.items()}
    assert len(found.linears()) == 2 * len(PROJECTIONS) + 1 + (not found.tie_word_embeddings)


@pytest.mark.parametrize(
    "scaling, spec",
    [
        (None, RopeSpec(1e4)),
        ({}, RopeSpec(1e4)),
        ({"type": "default"}, RopeSpec(1e4)),
        ({"rope_type": "linear", "factor": 4}, RopeSpec(1e4, position_scale=0.25)),
        ({"type": "linear", "factor": 2.0}, RopeSpec(1e4, position_scale=0.5)),
        ({"rope_type": "llama3", "factor": 32}, RopeSpec(1e4, llama3=(32.0, 1.0, 4.0, 8192.0))),
    ],
    ids=str,
)
def test_rope_scaling(scaling, spec, llama_config):
    assert read(llama_config(), rope_scaling=scaling).rope == spec


def test_traditional_rotation(llama_config):
    assert read(llama_config(), rope_traditional=True).rope.traditional


def test_a_llama_may_leave_fields_out(llama_config):
    found = read(llama_config(), num_key_value_heads=MISSING, head_dim=None, rope_theta=MISSING, rope_scaling=MISSING)
    assert (found.num_key_value_heads, found.head_dim, found.rope.theta) == (4, 16, 10000.0)


@pytest.mark.parametrize("name", ["qwen2", "llama"])
@pytest.mark.parametrize("field", ["rope_theta", "rope_traditional", "tie_word_embeddings"])
def test_what_is_left_out_means_what_it_means_to_mlx_lm(name, field, request):
    """The judge of every gradient is mlx-lm's model: a default that differs is another model."""
    config = request.getfixturevalue(f"{name}_config")()
    for key in ("rope_scaling", "quantization", field):
        config.pop(key, None)
    theirs = {"qwen2": qwen2, "llama": llama}[name].ModelArgs.from_dict(config)
    found = architecture_from_config(FILE, config)
    mine = {
        "rope_theta": found.rope.theta,
        "rope_traditional": found.rope.traditional,
        "tie_word_embeddings": found.tie_word_embeddings,
    }[field]
    assert mine == getattr(theirs, field)


@pytest.mark.parametrize(
    "field",
    ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps"],
)
@pytest.mark.parametrize("name", ["qwen2_config", "llama_config"])
def test_a_missing_field(name, field, request):
    refused(request.getfixturevalue(name)(), [f"the field {field} is missing"], **{field: MISSING})
    refused(request.getfixturevalue(name)(), [f"the field {field} is missing"], **{field: None})


@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
)
@pytest.mark.parametrize("value", [0, -1, 2.0, "64", True, [64]], ids=str)
def test_a_size_that_is_none(field, value, qwen2_config):
    refused(qwen2_config(), [field, repr(value), "a whole number above 0"], **{field: value})


@pytest.mark.parametrize("value", [0, -1e-6, "1e-6", True, None], ids=str)
def test_a_number_that_is_none(value, qwen2_config):
    refused(qwen2_config(), ["rms_norm_eps"], rms_norm_eps=value)


@pytest.mark.parametrize("value", [1, "true", "yes", 0.0], ids=str)
def test_a_truth_that_is_none(value, llama_config):
    refused(llama_config(), ["tie_word_embeddings", repr(value), "true or false"], tie_word_embeddings=value)
    refused(llama_config(), ["attention_bias", repr(value), "true or false"], attention_bias=value)


@pytest.mark.parametrize("value", ["gpt2", "Qwen2", "", None, 3, ["llama"]], ids=str)
def test_an_unknown_model_type(value, qwen2_config):
    refused(qwen2_config(), ["model_type", repr(value), "qwen2", "llama"], model_type=value)


def test_no_model_type(qwen2_config):
    refused(qwen2_config(), ["model_type", "None"], model_type=MISSING)


def test_sizes_that_do_not_fit(qwen2_config, llama_config):
    refused(qwen2_config(), ["num_key_value_heads", "3", "num_attention_heads (4)"], num_key_value_heads=3)
    refused(qwen2_config(), ["hidden_size", "66", "num_attention_heads (4)"], hidden_size=66)
    refused(llama_config(), ["head_dim", "23", "even"], head_dim=23)
    refused(qwen2_config(), ["head_dim", "15", "even"], hidden_size=60)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'", "'silu'"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["rope_scaling", "'yarn'", "llama3"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ["rope_scaling", "'dynamic'"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor", "missing"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["factor", "missing"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": -8}}, ["factor", "-8"]),
        ({"rope_scaling": "linear"}, ["rope_scaling", "'linear'", "object"]),
        ({"rope_theta": -1.0}, ["rope_theta", "-1.0"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["qwen2_config", "llama_config"])
def test_maths_that_is_not_ours(name, changes, said, request):
    refused(request.getfixturevalue(name)(), said, **changes)


def test_sliding_windows_are_refused(qwen2_config, llama_config):
    refused(qwen2_config(), ["use_sliding_window", "True"], use_sliding_window=True)
    assert read(qwen2_config(), use_sliding_window=False, sliding_window=4096)
    for config in (qwen2_config(), llama_config()):
        refused(config, ["layer_types", "sliding_attention"], layer_types=["full_attention", "sliding_attention"])
        assert read(config, layer_types=["full_attention"] * 2)
        assert read(config, layer_types=None)


@pytest.mark.parametrize("kinds", [[], ["full_attention"], ["full_attention"] * 3, "full_attention", [["full_attention"]]])
def test_layer_types_that_are_not_one_for_each_layer(kinds, llama_config):
    """mlx-lm's llama has as many layers as are named here."""
    refused(llama_config(), ["layer_types", "num_hidden_layers (2)"], layer_types=kinds)


def test_null_means_what_it_means_to_mlx_lm(llama_config):
    """Which takes the null itself, and not the default."""
    assert not read(llama_config(), tie_word_embeddings=None).tie_word_embeddings
    assert read(llama_config(), attention_bias=None, mlp_bias=None).biases == frozenset()
    assert read(llama_config(), num_key_value_heads=None).num_key_value_heads == 4
    refused(llama_config(), ["rope_traditional", "None"], rope_traditional=None)
    refused(llama_config(), ["rope_theta"], rope_theta=None)


def test_how_long_a_sequence_may_be(qwen2_config, llama_config):
    assert read(qwen2_config()).max_position_embeddings == 32768
    assert read(llama_config()).max_position_embeddings is None
    assert read(llama_config(), max_position_embeddings=4096).max_position_embeddings == 4096


def test_qwen2_has_no_head_dim_of_its_own(qwen2_config):
    """mlx-lm's does not look at it."""
    assert read(qwen2_config(), head_dim=16) == read(qwen2_config(), head_dim=None) == read(qwen2_config())
    refused(qwen2_config(), ["head_dim", "24", "16"], head_dim=24)


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), 1e39, 1e-50, 10**400], ids=["inf", "nan", "1e39", "1e-50", "long"]
)
@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
def test_numbers_that_are_not_finite(field, value, qwen2_config):
    refused(qwen2_config(), [field, "a number above 0"], **{field: value})


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_sizes_beyond_all_reason(field, qwen2_config):
    refused(qwen2_config(), [field, "a whole number up to"], **{field: 10**12})


def test_a_complaint_is_short_whatever_the_value(qwen2_config):
    deep = value = []
    for _ in range(500):
        value.append([])
        value = value[0]
    for value in (deep, "x" * 10**6, list(range(10**5))):
        with pytest.raises(CheckpointError) as caught:
            read(qwen2_config(), hidden_size=value)
        assert len(str(caught.value)) < 400
