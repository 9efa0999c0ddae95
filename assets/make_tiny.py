#!/usr/bin/env python3
"""Make the bundled checkpoint `assets/tiny`: a small Qwen2-architecture language model, 4-bit, with its own tokenizer.

It is trained from nothing on the English that every Python installation carries (the language reference behind
`help()` and the docstrings of the standard library), so it shares no sentence with data/sample.jsonl, and anyone can
make it again:

    python assets/make_tiny.py [--minutes 15] [--out assets/tiny]

Needs mlx, mlx-lm and tokenizers; a quarter of an hour on two cores with an optimised BLAS preloaded.
"""

import argparse
import ast
import json
import math
import sysconfig
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.qwen2 import Model, ModelArgs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "vocab_size": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
GROUP_SIZE, BITS = 64, 4
SEQ_LEN, BATCH_SIZE, LEARNING_RATE = 128, 16, 2e-3


def training_documents() -> list[str]:
    """The reference topics of `help()`, then every docstring of 200 characters or more in the standard library."""
    from pydoc_data.topics import topics

    documents = [topics[name].strip() for name in sorted(topics)]
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib"} & set(file.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= 200:
                    documents.append(text)
    return list(dict.fromkeys(documents))


def train_tokenizer(documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def pretrain(ids: np.ndarray, minutes: float) -> Model:
    """Plain AdamW with warm-up and a cosine; the schedule's length follows from the speed of the first steps."""
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    model = Model(ModelArgs.from_dict(CONFIG))
    optimizer = optim.AdamW(learning_rate=LEARNING_RATE, weight_decay=0.05, betas=[0.9, 0.95])

    def loss_fn(model: Model, inputs: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(inputs), labels, reduction="mean")

    loss_and_gradients = nn.value_and_grad(model, loss_fn)
    start, step, steps, losses = time.monotonic(), 0, 10**9, []
    while step < steps:
        at = rng.integers(0, len(ids) - SEQ_LEN - 1, BATCH_SIZE)
        window = mx.array(np.stack([ids[i : i + SEQ_LEN + 1] for i in at]).astype(np.int32))
        warm_up = min(1.0, (step + 1) / 50)
        optimizer.learning_rate = LEARNING_RATE * warm_up * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1, step / steps))))
        loss, gradients = loss_and_gradients(model, window[:, :-1], window[:, 1:])
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(loss, model.parameters(), optimizer.state)
        losses.append(loss.item())
        step += 1
        if step == 20:
            steps = max(60, int(minutes * 60 / ((time.monotonic() - start) / step)))
        if step % 50 == 0:
            print(f"step {step}/{steps}  loss {np.mean(losses[-50:]):.3f}  {time.monotonic() - start:.0f} s", flush=True)
    return model


def save(model: Model, tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, GROUP_SIZE, BITS)
    mx.save_safetensors(str(out / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    end_of_text, turn_end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    config = CONFIG | {
        "bos_token_id": end_of_text,
        "eos_token_id": turn_end,
        "quantization": {"group_size": GROUP_SIZE, "bits": BITS},
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=15, help="how long to train (default 15)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "tiny")
    options = parser.parse_args()
    documents = training_documents()
    tokenizer = train_tokenizer(documents)
    encodings = tokenizer.encode_batch(documents)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = np.concatenate([np.array([*e.ids, end], np.uint16) for e in encodings])
    print(f"{len(documents)} documents, {sum(map(len, documents)):,} characters, {len(ids):,} tokens", flush=True)
    save(pretrain(ids, options.minutes), tokenizer, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
