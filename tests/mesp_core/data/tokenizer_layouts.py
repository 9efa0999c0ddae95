"""Tokenizers in the layouts that model folders have, small and made by script: a folder each, as a hub's would be."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog sleeps on; what is the answer? the answer is forty two.",
    "user assistant system tool hello world, hello again, yes and no. It's 2024, 1234567 and 3.14 are numbers.",
    "def f(x):\n    return x + 1\n\nnaïve café é e\u0301 Zoë, 日本語 と 한국어, العربية 🙂",
]
CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>' + (call | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (
    "{% if not enable_thinking %}{{ '<no thinking>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>\n' }}{% endif %}"
    "{{ (m.content or '') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{ (m.content or '') | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + (m.content or '') + eos_token }}"
    "{% else %}{{ '[INST] ' + (m.content or '') + ' [/INST]' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + (m.content or '') | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
NAMED_TOKENS = (
    "{{ cls_token }}{% for m in messages %}{{ m.role + sep_token + (m.content or '') + mask_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' + sep_token }}{% endif %}"
)
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + GEMMA

QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT_DIGITS = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS_BY_THREE = SPLIT_DIGITS.replace(r"\p{N}|", r"\p{N}{1,3}|")


@cache
def byte_level(special: tuple[str, ...], pattern: str | None = None, prefix_space: bool = False, size: int = 420) -> str:
    """A byte-level BPE's tokenizer.json, as those of GPT-2, Qwen, Llama 3 and SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@cache
def sentence_piece(special: tuple[str, ...], how: str) -> str:
    """A sentencepiece-like BPE's tokenizer.json with byte fallback, as those of Llama 2, Mistral and Gemma.

    `how` says where the ▁ comes from: a `normalizer` (Prepend and Replace), one that only `replaces`, or a `metaspace`.
    """
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if how == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prepend = [normalizers.Prepend("▁")] if how == "normalizer" else []
        tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *bytes_], show_progress=False)
    # Trained on words, or whole sentences become tokens.
    tokenizer.train_from_iterator([word for text in CORPUS for word in text.split(" ")], trainer)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if how != "replaces" else parts)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] in special]
    return json.dumps(definition)


@cache
def unigram(special: tuple[str, ...]) -> str:
    """A Unigram model's tokenizer.json, NFKC-normalised, as those of T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=list(special), unk_token=special[0], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def with_beginning(text: str, token: str) -> str:
    """The same tokenizer, whose post-processor writes `token` first."""
    tokenizer = Tokenizer.from_str(text)
    template = processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer.to_str()


def with_added(text: str, *tokens: AddedToken) -> str:
    """The same tokenizer and more tokens that are not special."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.add_tokens(list(tokens))
    return tokenizer.to_str()


def config(tokenizer_class: str | None, template: object = None, **values: object) -> dict:
    """A tokenizer_config.json."""
    named = {"tokenizer_class": tokenizer_class, "chat_template": template}
    return {key: value for key, value in (named | values).items() if value is not None}


LLAMA2 = ("<unk>", "<s>", "</s>")
LLAMA2_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
LLAMA3_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA_NAMES = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
IM_END = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

# layout -> (config.json's model_type, tokenizer.json, tokenizer_config.json, other files)
Layout = tuple[str, Callable[[], str], dict, dict[str, object]]


def _qwen(pattern: str = SPLIT_DIGITS) -> str:
    return byte_level(tuple(QWEN_TOKENS), pattern)


def _thinking() -> str:
    tokens = [AddedToken(token, normalized=False) for token in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    return with_added(_qwen(), *tokens)


def _llama3() -> str:
    return with_beginning(byte_level(LLAMA3_TOKENS, DIGITS_BY_THREE), "<|begin_of_text|>")


LAYOUTS: dict[str, Layout] = {
    "qwen2": ("qwen2", _qwen, config("Qwen2Tokenizer", CHATML, **IM_END), {}),
    "qwen2, its file says otherwise": (
        "qwen2",
        lambda: _qwen(DIGITS_BY_THREE),
        config("PreTrainedTokenizerFast", CHATML, **IM_END),
        {},
    ),
    "qwen3, thinking": ("qwen3", _thinking, config("Qwen2Tokenizer", THINKING, **IM_END), {}),
    "llama3": (
        "llama",
        _llama3,
        config("PreTrainedTokenizerFast", LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
        {},
    ),
    "llama2": ("llama", lambda: sentence_piece(LLAMA2, "normalizer"), config("LlamaTokenizer", INST, **LLAMA2_NAMES), {}),
    "llama2, legacy": (
        "llama",
        lambda: sentence_piece(LLAMA2, "normalizer"),
        config("LlamaTokenizer", INST, legacy=True, add_prefix_space=True, **LLAMA2_NAMES),
        {},
    ),
    "llama2, metaspace": (
        "llama",
        lambda: sentence_piece(LLAMA2, "metaspace"),
        config("LlamaTokenizerFast", INST, legacy=False, **LLAMA2_NAMES),
        {},
    ),
    "llama2, no prefix space": (
        "llama",
        lambda: sentence_piece(LLAMA2, "replaces"),
        config("LlamaTokenizer", INST, add_prefix_space=False, **LLAMA2_NAMES),
        {},
    ),
    "mistral": (
        "mistral",
        lambda: sentence_piece((*LLAMA2, "[INST]", "[/INST]"), "metaspace"),
        config("LlamaTokenizer", INST, legacy=False, **LLAMA2_NAMES),
        {},
    ),
    "gemma": (
        "gemma3_text",
        lambda: sentence_piece(GEMMA_TOKENS, "replaces"),
        config("GemmaTokenizer", GEMMA, **GEMMA_NAMES),
        {},
    ),
    "gemma, refuses a system message": (
        "gemma3_text",
        lambda: sentence_piece(GEMMA_TOKENS, "replaces"),
        config("GemmaTokenizer", REFUSES_SYSTEM, **GEMMA_NAMES),
        {},
    ),
    "gpt2, template of its own": (
        "llama",
        lambda: byte_level(("<|endoftext|>",)),
        config("GPT2Tokenizer", CHATML, bos_token="<|endoftext|>", eos_token="<|endoftext|>"),
        {},
    ),
    "smollm2": (
        "llama",
        lambda: byte_level(tuple(QWEN_TOKENS), SPLIT_DIGITS),
        config("GPT2Tokenizer", CHATML, bos_token="<|im_start|>", add_prefix_space=False, **IM_END),
        {},
    ),
    "the beginning only in special_tokens_map.json": (
        "llama",
        _llama3,
        config("PreTrainedTokenizerFast", LLAMA3, eos_token="<|eot_id|>"),
        {"special_tokens_map.json": {"bos_token": {"content": "<|begin_of_text|>", "special": True}}},
    ),
    "cls, sep, mask and more": (
        "llama",
        lambda: byte_level(("[CLS]", "[SEP]", "[MASK]", "<extra>", "</s>")),
        config(
            "PreTrainedTokenizerFast",
            NAMED_TOKENS,
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            eos_token="</s>",
            additional_special_tokens=["<extra>", "<more>"],
        ),
        {},
    ),
    "asks for a beginning": (
        "llama",
        lambda: byte_level(LLAMA3_TOKENS),
        config("PreTrainedTokenizerFast", LLAMA3, add_bos_token=True, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
        {},
    ),
    "asks for no beginning, and an end": (
        "llama",
        lambda: sentence_piece(LLAMA2, "metaspace"),
        config("LlamaTokenizer", INST, add_bos_token=False, add_eos_token=True, **LLAMA2_NAMES),
        {},
    ),
    "prefix space": (
        "llama",
        lambda: byte_level(tuple(QWEN_TOKENS), prefix_space=True),
        config("GPT2Tokenizer", CHATML, add_prefix_space=True, **IM_END),
        {},
    ),
    "unigram, compatibility forms": (
        "llama",
        lambda: unigram(("<unk>", "</s>")),
        config("PreTrainedTokenizerFast", CHATML, eos_token="</s>"),
        {},
    ),
    "named templates": (
        "llama",
        lambda: byte_level(tuple(QWEN_TOKENS)),
        config(
            "PreTrainedTokenizerFast",
            [{"name": "default", "template": THINKING}, {"name": "tool_use", "template": CHATML}],
            **IM_END,
        ),
        {},
    ),
    "template in a file": (
        "qwen2",
        _qwen,
        config("Qwen2Tokenizer", "not this one", **IM_END),
        {"chat_template.jinja": CHATML},
    ),
    "added tokens that take spaces": (
        "llama",
        lambda: with_added(
            byte_level(tuple(QWEN_TOKENS)), AddedToken("<sep>", lstrip=True, rstrip=True), AddedToken("answer")
        ),
        config("PreTrainedTokenizerFast", CHATML, **IM_END),
        {},
    ),
}


def write_layout(name: str, folder: Path) -> Path:
    """Make the model folder of a layout (no weights)."""
    model_type, tokenizer, tokenizer_config, others = LAYOUTS[name]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer.json").write_text(tokenizer(), encoding="utf-8")
    files = {"tokenizer_config.json": tokenizer_config, **others}
    for file, content in files.items():
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder
