"""What a config.json says of rotation is what mlx-lm makes of it, or is refused: judged by the logits of its own model."""

import json

import numpy as np
import pytest

from mesp_core.errors import CheckpointError

IDS = np.random.default_rng(0).integers(0, 300, (1, 40))
LEFT_OUT = "(left out)"  # in place of a value: the field is not there; a text, so that test ids are the same each time
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def base(request, tmp_path_factory, random_tensors, write_folder):
    """A small unquantised checkpoint of either family, to whose config.json tests write."""
    config = request.getfixturevalue(f"{request.param}_config")(quantization=None, tie_word_embeddings=True)
    del config["quantization"]
    config.pop("rope_scaling", None)
    return write_folder(tmp_path_factory.mktemp(request.param), config, random_tensors(config)), config


@pytest.fixture
def configured(base):
    """configured(changes) -> the checkpoint's folder with these fields changed."""
    folder, config = base

    def write(changes):
        values = {name: value for name, value in (config | changes).items() if value is not LEFT_OUT}
        (folder / "config.json").write_text(json.dumps(values))
        return folder

    return write


SAME = [
    {},
    {"rope_theta": LEFT_OUT},
    {"rope_theta": 500000},
    {"rope_traditional": True},
    {"rope_scaling": None},
    {"rope_scaling": {}},
    {"rope_scaling": {"type": "default"}},
    {"rope_scaling": {"rope_type": "default", "factor": 8.0}},
    {"rope_scaling": {"type": "linear", "factor": 4}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.5}, "rope_traditional": True},
    {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4}},
    {"rope_scaling": {"type": None, "rope_type": "linear", "factor": 4}},
    {"rope_scaling": {"type": "", "rope_type": "linear", "factor": 4}},
    {"rope_scaling": {"type": "linear", "rope_type": None, "factor": 4}},
    {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 1}},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": LLAMA3, "rope_traditional": True},
    {"rope_scaling": LLAMA3, "rope_theta": LEFT_OUT},
    {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}},
    {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 32}, "rope_theta": 5e5},
    {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5}},
    {"rope_scaling": {"type": "default", "rope_theta": None}},
    {"rope_scaling": {"type": "default", "partial_rotary_factor": 1.0}},
    {"rope_parameters": None},
    {"rope_parameters": {}},
    {"rope_parameters": {"rope_type": "default"}},
    {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 500000}},
    {"rope_theta": 5e5, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "rope_scaling": LLAMA3},
    {"rope_parameters": {"rope_type": "linear", "factor": 4}, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 1}},
    {"max_position_embeddings": LEFT_OUT},
    {"max_position_embeddings": None},
]


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_the_same_model(changes, configured, our_logits, their_logits, assert_close):
    folder = configured(changes)
    assert_close(our_logits(folder, IDS), their_logits(folder, IDS), 1e-5)


def test_the_logits_tell_rotations_apart(configured, our_logits, relative_error):
    """What would be a silent difference is far above the bound."""
    right = our_logits(configured({}), IDS)
    for changes in ({"rope_theta": 5e5}, {"rope_scaling": {"type": "linear", "factor": 1.1}}, {"rope_traditional": True}):
        assert relative_error(our_logits(configured(changes), IDS), right) > 1e-3


RAISES = [
    ({"rope_theta": None}, ["rope_theta"]),
    ({"rope_theta": "10000"}, ["rope_theta", "'10000'"]),
    ({"rope_traditional": None}, ["rope_traditional", "None"]),
    ({"rope_scaling": "linear"}, ["rope_scaling", "'linear'", "an object"]),
    ({"rope_scaling": []}, ["rope_scaling", "[]", "an object"]),
    ({"rope_scaling": False}, ["rope_scaling", "False", "an object"]),
    ({"rope_scaling": {"rope_type": None}}, ["rope_scaling", "None", "llama3"]),
    ({"rope_scaling": {"rope_type": "ntk"}}, ["rope_scaling", "'ntk'", "llama3"]),
    ({"rope_scaling": {"type": "linear"}}, ["rope_scaling.factor", "missing"]),
    ({"rope_scaling": {"type": "linear", "factor": None}}, ["rope_scaling.factor"]),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, ["rope_scaling.factor is 0"]),
    ({"rope_scaling": {"rope_type": "llama3"}}, ["rope_scaling.factor", "missing"]),
    ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, ["rope_scaling.low_freq_factor"]),
    ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}}, ["original_max_position_embeddings"]),
    ({"rope_scaling": {"type": "dynamic"}}, ["rope_scaling", "'dynamic'"]),
    ({"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling", "'yarn'"]),
    ({"rope_scaling": {"rope_type": "longrope"}}, ["rope_scaling", "'longrope'"]),
]


@pytest.mark.parametrize("changes, said", RAISES, ids=str)
def test_what_mlx_lm_cannot_load_either(changes, said, configured, our_logits, their_logits):
    folder = configured(changes)
    with pytest.raises(Exception) as theirs:
        their_logits(folder, IDS)
    assert not isinstance(theirs.value, AssertionError)
    refused(folder, said, our_logits)


OTHERWISE = [  # mlx-lm loads these, and computes something else than the file asks for, or what is not ours
    ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, ["rope_parameters", "500000"]),
    (
        {"rope_theta": LEFT_OUT, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        ["rope_parameters asks for rope_theta 500000", "rope_theta 1"],
    ),
    ({"rope_parameters": LLAMA3}, ["rope_parameters", "llama3 scaling by factor 8"]),
    (
        {"rope_parameters": {"type": "linear", "factor": 4}, "rope_scaling": {"type": "linear", "factor": 2}},
        ["linear scaling by 4", "linear scaling by 2"],
    ),
    ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": LLAMA3}, ["rope_parameters", "llama3"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, ["rope_parameters", "'yarn'"]),
    ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_parameters", "'longrope'"]),
    ({"rope_parameters": {"rope_type": "linear"}}, ["rope_parameters.factor", "missing"]),
    ({"rope_parameters": {"rope_type": None}}, ["rope_parameters", "None"]),
    ({"rope_parameters": "default"}, ["rope_parameters", "'default'", "an object"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, ["rope_parameters.full_attention"]),
    ({"rope_scaling": {"type": "linear", "factor": 4, "rope_theta": 5e5}}, ["rope_scaling asks for rope_theta 500000"]),
    ({"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 4}}, ["rope_scaling.type", "rope_type"]),
    ({"rope_scaling": {"type": "default", "rope_type": "linear", "factor": 4}}, ["rope_scaling.type", "rope_type"]),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4}}, ["rope_scaling", "'yarn'"]),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ["rope_scaling", "'dynamic'"]),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["rope_scaling", "'yarn'"]),
    ({"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}, ["rope_scaling", "'proportional'"]),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, ["rope_scaling", "'mrope'"]),
    ({"rope_scaling": {"type": "linear", "factor": -4}}, ["rope_scaling.factor", "-4"]),
    ({"rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
    ({"rope_theta": float("inf")}, ["rope_theta is inf"]),
    ({"rope_theta": float("nan")}, ["rope_theta is nan"]),
    ({"rope_theta": 1e39}, ["rope_theta is 1e+39"]),
    ({"rope_theta": -1.0}, ["rope_theta is -1.0"]),
    ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, ["rope_scaling.factor is inf"]),
]


@pytest.mark.parametrize("changes, said", OTHERWISE, ids=str)
def test_what_mlx_lm_computes_otherwise(changes, said, configured, our_logits, their_logits):
    folder = configured({"max_position_embeddings": 64} | changes)
    their_logits(folder, IDS)  # without a word
    refused(folder, said, our_logits)


def test_a_theta_of_hundreds_of_digits(configured, our_logits):
    refused(configured({"rope_theta": 10**400}), ["rope_theta is 1", "..."], our_logits)


def refused(folder, said, our_logits):
    with pytest.raises(CheckpointError) as caught:
        our_logits(folder, IDS)
    for part in (str(folder / "config.json"), *said):
        assert part in str(caught.value)
