"""RunConfig: presets, JSON and back, and every refusal by field and value."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from mesp_core.errors import UsageError
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.settings.run_config import PRESETS, SETTINGS, RunConfig, preset

WHOLE = [name for name, setting in SETTINGS.items() if setting.kind == "whole"]
CHOSEN = [name for name, setting in SETTINGS.items() if setting.kind == "choice"]
CHANGED = {
    "model": "mlx-community/Qwen2.5-0.5B-Instruct-4bit",
    "data": "my données.jsonl",
    "method": "mesp:weights=resident",
    "rank": 16,
    "alpha": 32.5,
    "target_modules": ("q_proj", "down_proj"),
    "seq_len": 256,
    "batch_size": 2,
    "grad_accumulation": 4,
    "steps": 50,
    "learning_rate": 2e-4,
    "optimizer": "adam",
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warmup_steps": 5,
    "loss_on": "completion",
    "dtype": "bfloat16",
    "adapter_dtype": "float16",
    "kernel": "quantized",
    "seed": 2**63 - 1,
    "save_every": 0,
    "max_samples": 7,
    "memory_limit_mb": 4096,
    "time_limit_s": 1.5,
    "max_grad_norm": 0.5,
    "scratch_dir": "~/my scratch",
    "chat_template": "~/my template.jinja",
}


def refused(field, value, **changes):
    """The message of the UsageError that this value raises; it must name field and value."""
    with pytest.raises(UsageError) as caught:
        RunConfig(**{field: value}, **changes)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith(f"{field}:")
    assert repr(value) in message
    return message


def test_the_defaults_are_first_run():
    config = RunConfig()
    assert config == preset("first-run")
    assert (config.model, config.data, config.method) == ("tiny", "sample", "mesp")
    assert (config.optimizer, config.learning_rate, config.steps, config.seq_len) == ("adamw", 1e-3, 20, 128)
    assert (config.dtype, config.adapter_dtype, config.loss_on) == ("auto", "float32", "all")
    assert config.target_modules == PROJECTIONS


def test_the_papers_setting():
    config = preset("paper")
    assert (config.rank, config.batch_size, config.seq_len) == (8, 1, 256)
    assert (config.optimizer, config.learning_rate, config.adapter_dtype) == ("sgd", 1e-4, "bfloat16")
    assert config.scale == 2 and config.target_modules == PROJECTIONS


def test_a_preset_can_be_changed():
    config = preset("paper", adapter_dtype="float32", steps=50)
    assert (config.adapter_dtype, config.steps, config.optimizer) == ("float32", 50, "sgd")
    with pytest.raises(UsageError, match="steps: 0 "):
        preset("paper", steps=0)
    with pytest.raises(UsageError, match="stepps: there is no such setting"):
        preset("paper", stepps=5)
    with pytest.raises(UsageError, match="preset: 'papr' is not one of first-run, paper"):
        preset("papr")


def test_every_field_declares_all_that_is_shown_of_it():
    """The command line, the window and README.md have no words of their own for a setting."""
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(RunConfig)]
    assert len({setting.flag for setting in SETTINGS.values()}) == len(SETTINGS)
    for name, setting in SETTINGS.items():
        assert setting.name == name and setting.default == getattr(RunConfig(), name)
        assert setting.flag.startswith("--") and setting.help and not setting.help.endswith(".")
        assert setting.tooltip.endswith(".") and not setting.tooltip.endswith("..")
        assert bool(setting.between[1]) == (setting.kind in ("whole", "real"))
        assert bool(setting.choices) == (setting.kind in ("choice", "names"))
        assert not setting.empty or setting.kind == "text"
        # The method is chosen by check boxes of its own, model and data stand above the form.
        assert bool(setting.label) == (name != "method")
        assert bool(setting.group) == (name not in ("model", "data", "method"))
        assert not setting.after or SETTINGS[setting.after].group == setting.group
    labels = [setting.label for setting in SETTINGS.values() if setting.label]
    assert len(set(labels)) == len(labels)


def test_it_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().rank = 4


@pytest.mark.parametrize("values", [{}, CHANGED, *PRESETS.values()], ids=["defaults", "changed", *PRESETS])
def test_through_json_and_back(values):
    config = RunConfig.from_dict(values)
    text = json.dumps(config.to_dict())
    again = RunConfig.from_dict(json.loads(text))
    assert again == config and hash(again) == hash(config)
    assert json.dumps(again.to_dict()) == text
    assert set(json.loads(text)) == {field.name for field in dataclasses.fields(RunConfig)}


def test_every_field_is_tried_here():
    default = RunConfig()
    assert set(CHANGED) == {field.name for field in dataclasses.fields(RunConfig)}
    assert all(getattr(default, name) != value for name, value in CHANGED.items())
    assert {name: getattr(RunConfig(**CHANGED), name) for name in CHANGED} == CHANGED


def test_whole_numbers_stand_for_real_ones():
    config = RunConfig.from_dict({"alpha": 16, "time_limit_s": 3, "learning_rate": 1})
    assert (config.alpha, config.time_limit_s, config.learning_rate) == (16.0, 3.0, 1.0)
    assert all(type(value) is float for value in (config.alpha, config.time_limit_s, RunConfig(alpha=4).alpha))
    assert RunConfig(alpha=16) == RunConfig(alpha=16.0)


def test_replace_checks_again():
    assert RunConfig().replace(rank=4).scale == 4.0
    with pytest.raises(UsageError, match="rank: 0"):
        RunConfig().replace(rank=0)


def test_targets_have_one_order():
    config = RunConfig(target_modules=("down_proj", "q_proj", "q_proj"))
    assert config.target_modules == ("q_proj", "down_proj")
    assert config == RunConfig.from_dict({"target_modules": ["q_proj", "down_proj"]})


@pytest.mark.parametrize("field", WHOLE)
def test_whole_numbers_outside_their_range(field):
    low, high = SETTINGS[field].between
    for value in (low - 1, high + 1, 1.5, float(low), True, "8", None, [low]):
        message = refused(field, value)
        assert str(low) in message and str(high) in message
    if field not in ("warmup_steps", "steps"):
        assert getattr(RunConfig(**{field: low}), field) == low
        assert getattr(RunConfig(**{field: high}), field) == high


@pytest.mark.parametrize("field", CHOSEN)
def test_words_that_are_not_among_the_choices(field):
    choices = list(SETTINGS[field].choices)
    for value in ("", "nonsense", choices[0].upper(), None, 3, choices[:1]):
        message = refused(field, value)
        assert all(choice in message for choice in choices)
    for choice in choices:
        assert getattr(RunConfig(**{field: choice}), field) == choice


@pytest.mark.parametrize(
    "field, allowed, wrong",
    [
        ("learning_rate", [1e-12, 10.0], [0, 0.0, -1e-3, 10.1]),
        ("alpha", [0.5, 1e6], [0, -16, 2e6]),
        ("weight_decay", [0, 10], [-0.1, 11]),
        ("time_limit_s", [0, 1e9], [-1, 2e9]),
        ("max_grad_norm", [0, 1e9], [-0.5, 2e9]),
    ],
)
def test_real_numbers(field, allowed, wrong):
    for value in allowed:
        assert getattr(RunConfig(**{field: value}), field) == value
    for value in [*map(float, wrong), math.nan, math.inf, -math.inf, True, "0.1", None, [0.1]]:
        refused(field, value)


@pytest.mark.parametrize("field", ["model", "data", "method"])
@pytest.mark.parametrize("value", ["", "  ", None, 3])
def test_names_must_be_there(field, value):
    refused(field, value)


@pytest.mark.parametrize("value", ["  ", None, 3, Path("scratch")])
def test_the_scratch_folder_is_text(value):
    assert "leave it empty for the cache folder" in refused("scratch_dir", value)


def test_the_method_is_parsed():
    with pytest.raises(UsageError, match="method: unknown name 'magic'"):
        RunConfig(method="magic")
    with pytest.raises(UsageError, match="grad-checkpoint"):
        RunConfig(method="mesp:grad-checkpoint")


def test_warm_up_must_end_before_the_run():
    assert RunConfig(steps=5, warmup_steps=4).warmup_steps == 4
    assert RunConfig(steps=1, warmup_steps=0).steps == 1
    for warmup in (5, 6):
        with pytest.raises(UsageError, match=rf"warmup_steps: {warmup} is not below steps \(5\)"):
            RunConfig(steps=5, warmup_steps=warmup)


@pytest.mark.parametrize("value, said", [((), "none given"), (("q",), "'q'"), ("q_proj", "'q_proj'"), ((1,), r"\(1,\)")])
def test_targets_refused(value, said):
    with pytest.raises(UsageError, match=f"target_modules: .*{said}"):
        RunConfig(target_modules=value)


@pytest.mark.parametrize("value", [None, 3, True])
def test_targets_that_are_no_list_at_all(value):
    """What a hand-written JSON file may hold; the message must be ours."""
    with pytest.raises(UsageError, match=f"target_modules: {value!r}"):
        RunConfig.from_dict({"target_modules": value})


def test_a_whole_number_too_large_for_a_float_is_refused():
    """JSON has no largest number."""
    with pytest.raises(UsageError, match="alpha: 1000"):
        RunConfig.from_dict(json.loads('{"alpha": 1' + "0" * 400 + "}"))


def test_unknown_fields_are_named():
    with pytest.raises(UsageError, match=r"learn_rate: there is no such setting; there are .*learning_rate"):
        RunConfig.from_dict({"learn_rate": 1})
