"""A checkpoint is the model that mlx-lm makes of it, or is refused with a sentence, layout by layout."""

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.errors import CheckpointError

IDS = np.random.default_rng(0).integers(0, 300, (1, 12))
UP, DOWN, GATE = (f"model.layers.1.mlp.{name}_proj" for name in ("up", "down", "gate"))
Q = "model.layers.0.self_attn.q_proj"
HEAD, EMBEDDING = "lm_head", "model.embed_tokens"
FOUR = {"bits": 4, "group_size": 32}
LEFT_OUT = object()


@pytest.fixture
def make(tmp_path, qwen2_config, random_tensors, write_folder):
    """make(quantization, requantised={path: (bits, group size) or None}, change(tensors), **fields) -> a folder.

    `requantised` says how tensors are quantised in the file, where it is not 4 bits in groups of 32.
    """

    def build(quantization=FOUR, requantised=None, change=lambda tensors: None, **fields):
        config = qwen2_config(**fields) | {"hidden_size": 64, "intermediate_size": 128}
        tensors = random_tensors(config | {"quantization": FOUR, "tie_word_embeddings": True})
        for path, own in (requantised or {}).items():
            parts = [tensors.pop(f"{path}.{name}") for name in ("weight", "scales", "biases")]
            plain = mx.dequantize(*parts, group_size=32, bits=4)
            if own is None:
                tensors[f"{path}.weight"] = plain
                continue
            parts = mx.quantize(plain, bits=own[0], group_size=own[1])
            tensors |= {f"{path}.{name}": part for name, part in zip(("weight", "scales", "biases"), parts, strict=True)}
        change(tensors)
        config |= {"quantization": quantization}
        values = {name: value for name, value in config.items() if value is not LEFT_OUT}
        return write_folder(tmp_path / "model", values, tensors)

    return build


@pytest.fixture
def same(our_logits, their_logits, assert_close):
    def check(folder):
        assert_close(our_logits(folder, IDS), their_logits(folder, IDS), 1e-5)

    return check


@pytest.fixture
def refused(our_logits):
    def check(folder, *said):
        with pytest.raises(CheckpointError) as caught:
            our_logits(folder, IDS)
        for part in (str(folder), *said):
            assert part in str(caught.value)

    return check


@pytest.fixture
def refused_by_both(refused, their_logits):
    def check(folder, *said):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError, RuntimeError)):
            their_logits(folder, IDS)
        refused(folder, *said)

    return check


# What config.json says of quantisation


ACCEPTED = {
    "as usual": (FOUR, {}),
    "all three settings": (FOUR | {"mode": "affine"}, {}),
    "a layer with settings": (FOUR | {UP: {"bits": 8, "group_size": 64}}, {UP: (8, 64)}),
    "bits alone, in MLX's groups of 64": (FOUR | {UP: {"bits": 8}}, {UP: (8, 64)}),
    "a group size alone, with MLX's 4 bits": ({"bits": 8, "group_size": 32, DOWN: {"group_size": 128}}, {DOWN: (4, 128)}),
    "a mode alone": ({"bits": 8, "group_size": 32, UP: {"mode": "affine"}}, {UP: (4, 64)}),
    "null settings": (FOUR | {UP: {"bits": None, "group_size": None}}, {UP: (4, 64)}),
    "a layer of the settings at the top": (FOUR | {UP: True}, {}),
    "a plain layer": (FOUR | {UP: False}, {UP: None}),
    "a plain layer that is not mentioned": (FOUR, {UP: None}),
    "plain by null and by an empty object": (FOUR | {UP: None, DOWN: {}}, {UP: None, DOWN: None}),
    "inputs that are not quantised": (FOUR | {UP: {"bits": 8, "group_size": 64, "quantize_input": False}}, {UP: (8, 64)}),
    "an entry named like the tensor": (FOUR | {f"{UP}.weight": {"bits": 8, "group_size": 64}}, {UP: (8, 64)}),
    "an entry under a prefix": (FOUR | {f"language_model.{UP}": {"bits": 6, "group_size": 64}}, {UP: (6, 64)}),
    "an entry for a group of modules": (FOUR | {"model.layers.1.mlp": False}, {}),
    "a layer that nothing is said of": (FOUR, {UP: (3, 32), Q: (5, 64), EMBEDDING: (8, 32)}),
    "bits at the top that are not the file's": ({"bits": 8, "group_size": 32}, {}),
    "a group size at the top that is not the file's": ({"bits": 4, "group_size": 64}, {}),
    "nonsense at the top": ({"bits": "four", "group_size": None}, {}),
    "a mode at the top that is not the file's": (FOUR | {"mode": "mxfp4"}, {}),
    "words that nobody reads": (FOUR | {"quant_method": "mlx", "linear_class": "quantized_linear"}, {}),
    "a norm that is not quantised": (FOUR | {"model.norm": False}, {}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_layout_of_quantisation(name, make, same):
    quantization, requantised = ACCEPTED[name]
    same(make(quantization, requantised))


REFUSED = {
    "bits that are not the file's": (FOUR | {UP: {"bits": 8, "group_size": 32}}, [f"tensor {UP}.weight"]),
    "a group size that is not the file's": (FOUR | {UP: {"bits": 4, "group_size": 64}}, [f"tensor {UP}.scales"]),
    "bits alone do not inherit the group size": (FOUR | {UP: {"bits": 4}}, [f"tensor {UP}.scales", "[128, 1]"]),
    "true where the top is not the file's": ({"bits": 8, "group_size": 32, UP: True}, [f"tensor {UP}.weight"]),
    "plain, with scales": (FOUR | {UP: False}, [UP, "False", "plain", "scales"]),
    "another mode": (FOUR | {UP: FOUR | {"mode": "mxfp4"}}, [UP, "'mxfp4'", "'affine'"]),
    "a number for a layer": (FOUR | {UP: 4}, [UP, "is 4"]),
    "a setting that nobody knows": (FOUR | {UP: FOUR | {"rotation": True}}, [UP, "rotation"]),
    "quantised inputs": (FOUR | {UP: FOUR | {"quantize_input": True}}, [UP, "inputs"]),
    "bits of a layer as text": (FOUR | {UP: {"bits": "4", "group_size": 32}}, [UP, "'4'"]),
    "bits of a layer as a real number": (FOUR | {UP: {"bits": 4.0, "group_size": 32}}, [UP, "4.0"]),
    "bits that there are not": (FOUR | {UP: {"bits": 7, "group_size": 32}}, [UP, "bits 7"]),
    "a group size that there is not": (FOUR | {UP: {"bits": 4, "group_size": 16}}, [UP, "group_size 16"]),
    "groups larger than the inputs": (FOUR | {UP: {"bits": 4, "group_size": 128}}, [UP, "128 for 64 inputs"]),
    "a norm that is quantised": (FOUR | {"model.norm": FOUR}, ["model.norm", "no matrix"]),
    "bits alone": ({"bits": 4}, ["quantization", "bits and group_size"]),
    "a group size alone": ({"group_size": 32}, ["quantization", "bits and group_size"]),
    "an empty object": ({}, ["quantization is {}"]),
    "a list": ([4, 32], ["quantization is [4, 32]"]),
    "text": ("4bit", ["quantization is '4bit'"]),
    "false": (False, ["quantization is False"]),
    "nothing, with scales": (None, [EMBEDDING, "quantised"]),
    "no field, with scales": (LEFT_OUT, [EMBEDDING, "quantised"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_of_quantisation_that_neither_takes(name, make, refused_by_both):
    quantization, said = REFUSED[name]
    refused_by_both(make(quantization), "config.json", *said)


@pytest.mark.parametrize("path", [UP, EMBEDDING])
def test_a_layer_that_should_be_quantised_and_is_not(path, make, refused_by_both):
    refused_by_both(make(FOUR | {path: FOUR}, {path: None}), f"tensor {path}.weight")


def test_one_bit(make, refused):
    """Which mlx-lm takes."""
    refused(make(FOUR, change=lambda tensors: tensors.update({f"{UP}.weight": mx.zeros((128, 2), mx.uint32)})), "bits 1", UP)


def test_scales_of_eight_bits(make, refused):
    def change(tensors):
        for path in (name.removesuffix(".scales") for name in list(tensors) if name.endswith(".scales")):
            plain = mx.dequantize(*(tensors.pop(f"{path}.{part}") for part in ("weight", "scales", "biases")), 32, 4)
            tensors[f"{path}.weight"], tensors[f"{path}.scales"] = mx.quantize(plain, mode="mxfp4")

    refused(make(FOUR | {"mode": "mxfp4"}, change=change), "config.json", "'mxfp4'", EMBEDDING, "'affine'")


def test_activations_that_are_to_be_quantised(make, refused, refused_by_both):
    refused_by_both(make(quantize_activations=True), "config.json", "quantize_activations", "True")
    refused(make(FOUR | {"quantize_activations": True}), "config.json", "quantize_activations")


def test_activations_that_are_not(make, same):
    same(make(FOUR | {"quantize_activations": False}, quantize_activations=False))


# Quantisation by others


def test_quantization_config_beside_mlxs_own_is_no_matter(make, same):
    same(make(quantization_config={"bits": 8, "quant_method": "gptq"}))


def test_an_empty_quantization_config(make, same):
    everything = dict.fromkeys(plain_paths())
    same(make(LEFT_OUT, everything, quantization_config={}))


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "fp8", "mxfp4"])
def test_another_librarys_quantisation(method, make, refused):
    """Some of which mlx-lm converts as it loads."""
    foreign = {"quant_method": method, "bits": 4, "group_size": 32}
    refused(make(LEFT_OUT, quantization_config=foreign), "config.json", f"with {method};", "mlx-community")


def test_another_librarys_quantisation_elsewhere(make, refused):
    everything = dict.fromkeys(plain_paths())
    text_config = {"quantization_config": {"quant_method": "awq"}}
    refused(make(LEFT_OUT, everything, text_config=text_config), "config.json", "awq")
    folder = make(LEFT_OUT, everything)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    refused(folder, "config.json", "hf_quant_config.json")


def plain_paths():
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    blocks = [f"model.layers.{i}.{name}" for i in range(2) for name in (*attention, "mlp.gate_proj")]
    return [EMBEDDING, *blocks, *(f"model.layers.{i}.mlp.{name}_proj" for i in range(2) for name in ("up", "down"))]


# Tensors


EXTRA = {
    "a norm of queries": "model.layers.0.self_attn.q_norm.weight",
    "a block too many": "model.layers.2.mlp.up_proj.weight",
    "a bias that config does not know of": "model.layers.1.mlp.up_proj.bias",
    "another bias": "model.layers.1.self_attn.o_proj.bias",
    "a head for classes": "score.weight",
    "groups of a head beside a tied embedding": "lm_head.scales",
    "what nobody knows": "model.layers.0.self_attn.q_proj.g_idx",
}


@pytest.mark.parametrize("name", EXTRA)
def test_a_tensor_that_is_not_used(name, make, refused_by_both):
    folder = make(change=lambda tensors: tensors.update({EXTRA[name]: mx.ones((64,))}))
    refused_by_both(folder, "model.safetensors", f"tensor {EXTRA[name]} is there", "config.json")


def test_how_many_are_not_used_is_told(make, refused_by_both):
    def change(tensors):
        for name in ("weight", "scales", "biases"):
            tensors[f"model.layers.2.mlp.up_proj.{name}"] = tensors[f"{UP}.{name}"]

    refused_by_both(make(change=change), "model.layers.2.mlp.up_proj.biases", "and 2 more")


def test_what_mlx_lm_drops_is_no_matter(make, same):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = mx.ones((8,))
        tensors["lm_head.weight"] = mx.ones((3,))

    same(make(change=change))


def test_a_head_that_config_does_not_mention(make, their_logits, refused):
    """mlx-lm would leave it out without a word, others would use it."""
    folder = make(
        change=lambda tensors: tensors.update({"lm_head.weight": mx.ones((300, 64))}), tie_word_embeddings=LEFT_OUT
    )
    their_logits(folder, IDS)
    refused(folder, "config.json", "tie_word_embeddings", "lm_head.weight")


def test_no_head_and_nothing_said_of_it(make, same):
    same(make(tie_word_embeddings=LEFT_OUT))


@pytest.mark.parametrize("tied", [False, None])
def test_a_head_of_its_own(tied, make, same, refused_by_both):
    same(make(change=lambda tensors: tensors.update({"lm_head.weight": mx.ones((300, 64))}), tie_word_embeddings=tied))
    refused_by_both(make(tie_word_embeddings=tied), "lm_head.weight")


# Files


def test_a_file_that_no_index_names_is_read(make, same):
    """mlx-lm reads every model*.safetensors."""
    folder = make()
    split(folder, lambda name: name.startswith("model.layers.0."))
    same(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "model.safetensors"}}')
    same(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    same(folder)


def test_a_tensor_that_is_there_twice(make, refused, their_logits):
    """Which of them mlx-lm takes is the file system's choice."""
    folder = make()
    mx.save_safetensors(str(folder / "model-2.safetensors"), {"model.norm.weight": mx.zeros((64,))})
    their_logits(folder, IDS)
    said = ["model.norm.weight", "model-2.safetensors", "model.safetensors"]
    refused(folder, *said)
    weight_map = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map))
    refused(folder, *said)


def test_a_file_that_mlx_lm_does_not_look_at(make, refused_by_both):
    folder = make()
    split(folder, lambda name: name.startswith("model.layers.0."), "weights-2.safetensors")
    names = {name: "weights-2.safetensors" for name in mx.load(str(folder / "weights-2.safetensors"))}
    refused_by_both(folder, "model.layers.0.", "missing")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    refused_by_both(folder, "index.json", "weights-2.safetensors", "model*.safetensors")


def test_a_file_beside_the_model(make, same):
    folder = make()
    shutil.copyfile(folder / "model.safetensors", folder / "consolidated.safetensors")
    same(folder)


def split(folder, other, name="model-2.safetensors"):
    """Move the tensors whose name `other` says yes to into a file of their own."""
    tensors = mx.load(str(folder / "model.safetensors"))
    mx.eval(tensors)
    mx.save_safetensors(str(folder / name), {key: array for key, array in tensors.items() if other(key)})
    (folder / "model.safetensors").unlink()
    rest = {key: array for key, array in tensors.items() if not other(key)}
    mx.save_safetensors(str(folder / "model.safetensors"), rest)
