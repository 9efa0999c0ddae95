"""What a dropped or opened path is."""

import pytest
from PySide6.QtWidgets import QWidget

from app.opening import Opener, what_is
from mesp_core.errors import UsageError


def test_models_and_data(tmp_path):
    (tmp_path / "config.json").touch()
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
        assert what_is(path) == ("model", tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert what_is(tmp_path / "tokenizer.json") == ("model", tmp_path)
    for name in ("my.jsonl", "MY.JSONL"):
        assert what_is(tmp_path / name) == ("data", tmp_path / name)


def test_a_model_and_a_data_file_together_but_not_two_of_a_kind(tmp_path, qtbot):
    window = QWidget()
    qtbot.addWidget(window)
    (tmp_path / "config.json").touch()
    opener, heard = Opener(window), []
    opener.model.connect(heard.append)
    opener.data.connect(heard.append)
    opener.refused.connect(heard.append)
    opener.open([tmp_path / "b.jsonl", tmp_path])
    assert heard == [str(tmp_path), str(tmp_path / "b.jsonl")]
    opener.open([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert "are two data files" in heard[-1] and len(heard) == 3


def test_the_rest_is_refused_with_what_is_allowed(tmp_path):
    with pytest.raises(UsageError, match="holds no config"):
        what_is(tmp_path)
    for name in ("notes.txt", "x" * 5000, "~nobody-of-that-name/notes.txt"):
        with pytest.raises(UsageError, match=r"neither a \.jsonl"):
            what_is(tmp_path / name)
