"""What is checked and made before a worker starts."""

import json

import pytest

from mesp_core.errors import UsageError
from mesp_core.files.bundled import bundled_path
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.runs.prepare import check_seq_len, prepare


def test_a_length_the_model_was_not_made_for(small_config):
    checkpoint = open_checkpoint(bundled_path("tiny"))
    longest = checkpoint.architecture.max_position_embeddings
    check_seq_len(small_config(seq_len=longest), checkpoint)
    too_long = small_config(seq_len=longest + 1)
    with pytest.raises(UsageError, match=rf"seq_len: {longest + 1} is more than tiny .* up to {longest}"):
        check_seq_len(too_long, checkpoint)
    with pytest.raises(UsageError, match="seq_len"):
        prepare(too_long)


def test_a_model_that_does_not_say_how_long(small_config, tiny_copy):
    """mlx-lm's llama computes at any length then; 2048 was never the model's word."""
    config_file = tiny_copy / "config.json"
    values = json.loads(config_file.read_text())
    config_file.write_text(json.dumps(values | {"max_position_embeddings": None}))
    check_seq_len(small_config(seq_len=8192), open_checkpoint(tiny_copy))


def test_a_name_that_cannot_be_names_a_file_that_does_not_exist(small_config):
    for name in ("~no-such-person/x.jsonl", "n" * 300):
        with pytest.raises(UsageError, match=rf"{name} does not exist; check the path"):
            prepare(small_config(data=name))


def test_tokenising_tells_progress_and_can_be_cancelled(small_config, tmp_path):
    class Cancelled(Exception):
        pass

    def cancel(message, fraction):
        assert (message, fraction) == ("Tokenising mine.jsonl", 0.0)
        raise Cancelled

    data = tmp_path / "mine.jsonl"
    data.write_text('{"text": "something that no other test tokenises"}\n')
    config = small_config(data=str(data))
    with pytest.raises(Cancelled):
        prepare(config, cancel)
    assert len(prepare(config).tokens) == 1
