"""The description of an experiment, as it is remembered between starts."""

import json

import pytest

from app.experiment.experiment import Experiment
from mesp_core.errors import UsageError
from mesp_core.settings.run_config import RunConfig


def test_a_round_trip_through_json_gives_an_equal_experiment():
    config = RunConfig(rank=4, learning_rate=1e-4, target_modules=("v_proj", "q_proj"))
    experiment = Experiment(config, ("mesp:weights=resident", "mebp"), True)
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_the_configurations_method_is_the_first_of_the_methods():
    assert Experiment(RunConfig(method="autodiff"), ("mebp", "mesp"), False).config.method == "mebp"


def test_what_is_left_out_takes_its_default():
    assert Experiment.from_dict({}) == Experiment()
    assert Experiment().methods == ("mebp", "mesp") and Experiment().config.model == "tiny"


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "tiny",
        {"colour": "red"},
        {"config": 3},
        {"config": {"rank": "many"}},
        {"config": {"tempo": 1}},
        {"methods": "mesp"},
        {"methods": []},
        {"methods": [1]},
        {"methods": ["magic"]},
        {"methods": ["mesp", "mesp"]},
        {"interleave": 1},
    ],
)
def test_nonsense_is_refused_as_a_usage_error(values):
    with pytest.raises(UsageError):
        Experiment.from_dict(values)
