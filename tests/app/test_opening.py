"""What a dropped or opened path is."""

import pytest

from app.opening import what_is
from mesp_core.errors import UsageError


def test_models_and_data(tmp_path):
    (tmp_path / "config.json").touch()
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
        assert what_is(path) == ("model", tmp_path)
    assert what_is(tmp_path / "my.jsonl") == ("data", tmp_path / "my.jsonl")


def test_the_rest_is_refused_with_what_is_allowed(tmp_path):
    with pytest.raises(UsageError, match="holds no config"):
        what_is(tmp_path)
    with pytest.raises(UsageError, match=r"neither a \.jsonl"):
        what_is(tmp_path / "notes.txt")
