"""The options of a run are those that the settings declare."""

import argparse

import pytest

from mesp_core.commands.options import add_run_options, config_of
from mesp_core.errors import UsageError
from mesp_core.settings.run_config import SETTINGS, RunConfig


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return parser


def test_there_is_one_for_every_setting_but_the_method_and_none_besides(parser):
    offered = {action.dest: action for action in parser._actions if action.dest not in ("help", "preset")}
    assert list(offered) == [name for name in SETTINGS if name != "method"]
    for name, action in offered.items():
        assert action.option_strings == [SETTINGS[name].flag]
        assert action.help.startswith(f"{SETTINGS[name].help} (default")
        if SETTINGS[name].kind == "choice":
            assert action.choices == list(SETTINGS[name].choices)


def test_nothing_given_is_the_preset(parser):
    assert config_of(parser.parse_args([])) == RunConfig()


def test_each_kind_is_read(parser):
    given = [
        "--rank",
        "4",
        "--lr",
        "2",
        "--optimizer",
        "sgd",
        "--scratch-dir",
        "here",
        "--target-modules",
        "up_proj, q_proj",
    ]
    config = config_of(parser.parse_args(given))
    assert (config.rank, config.learning_rate, config.optimizer, config.scratch_dir) == (4, 2.0, "sgd", "here")
    assert config.target_modules == ("q_proj", "up_proj")


@pytest.mark.parametrize(
    "given, named",
    [
        (["--rank", "0"], "--rank: 0 is"),
        (["--lr", "0"], "--lr (learning_rate): 0.0 is"),
        (["--warmup-steps", "20"], "--warmup-steps (warmup_steps): 20 is"),
        (["--target-modules", "q"], "--target-modules (target_modules): 'q' is"),
    ],
)
def test_the_option_is_named_beside_the_setting_that_is_refused(parser, given, named):
    with pytest.raises(UsageError) as caught:
        config_of(parser.parse_args(given))
    assert str(caught.value).startswith(named)
