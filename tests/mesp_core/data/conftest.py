"""A tiny model folder (tokenizer and chat template, no weights) and helpers to write data files."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog sleeps on",
    "a model learns from what it reads; what is the answer? the answer is forty two",
    "user assistant system hello world, hello again, yes and no",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory):
    """The text of a byte-level BPE tokenizer with 320 tokens; ids 0, 1, 2 are SPECIAL."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@pytest.fixture
def make_model(tmp_path, tokenizer_json):
    """make_model(template=None, name="model", **tokenizer_config) -> the folder."""

    def make(template=None, name="model", **config):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        config = {"eos_token": "<|im_end|>", **config}
        if template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def chat_model(make_model):
    return make_model(CHATML, name="chat-model")


@pytest.fixture
def plain_model(make_model):
    return make_model(name="plain-model")


@pytest.fixture
def write(tmp_path):
    """write(rows or bytes, name="data.jsonl") -> the path; a row that is a str is a line as it stands."""

    def make(rows, name="data.jsonl"):
        path = tmp_path / name
        if isinstance(rows, bytes):
            path.write_bytes(rows)
        else:
            lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return make


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, own_cache):
    """A cache folder of the test's own, but for what is known of tokenizers: mlx-lm takes seconds to load one."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (own_cache / "tokenizers").mkdir(exist_ok=True)
    (folder / "tokenizers").symlink_to(own_cache / "tokenizers")
    monkeypatch.setenv("MESP_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the real SmolLM2 checkpoint."""
    folder = os.environ.get("MESP_SMOLLM2")
    if not folder or not (Path(folder) / "tokenizer.json").is_file():
        pytest.skip("MESP_SMOLLM2 does not name a SmolLM2 checkpoint")
    return Path(folder)


def turn(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def chat():
    """chat("u", "a", "u", ...) -> messages of user and assistant in turn."""

    def make(*contents):
        return [turn("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]

    return make


@pytest.fixture
def no_child(monkeypatch):
    """no_child() makes any further child process an error."""

    def forbid():
        def start(*_args, **_kwargs):
            raise AssertionError("a child was started")

        monkeypatch.setattr(subprocess, "Popen", start)

    return forbid
