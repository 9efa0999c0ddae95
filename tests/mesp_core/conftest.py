"""What tests of the maths and of checkpoints share: independent plain forwards, random layers, small checkpoints.

Nothing here uses `mesp_core.ops`: the references stand on basic mlx.core and numpy operations alone.
"""

import gc
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

# Read by MLX at its first evaluation: depth first, as in the worker, so that peaks are those of a run.
os.environ.setdefault("MLX_BFS_MAX_WIDTH", "1")

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture
def exact_memory():
    """The allocator counts what a test makes and no more: no buffer cache, as in a worker, and nothing of tests before is
    left to the garbage collector, which would let it go in the midst of this one."""
    import mlx.core as mx

    gc.collect()
    mx.synchronize()
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@pytest.fixture(scope="session")
def relative_error():
    """relative_error(actual, expected) -> ‖actual − expected‖ / ‖expected‖ in float64; NaN stays NaN and so fails."""
    import mlx.core as mx

    def measure(actual, expected):
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        actual, expected = (np.array(a.astype(mx.float32)).astype(np.float64) for a in (actual, expected))
        size = np.linalg.norm(expected)
        return np.linalg.norm(actual - expected) / (size if size else 1.0)

    return measure


@pytest.fixture(scope="session")
def assert_close(relative_error):
    """assert_close(actual, expected, bound=1e-5, name=""): same shape, no NaN, relative error within the bound."""

    def check(actual, expected, bound=1e-5, name=""):
        error = relative_error(actual, expected)
        assert error <= bound, f"{name}: relative error {error:.3g}, bound {bound:g}"

    return check


@pytest.fixture(scope="session")
def noise():
    """noise(*shape, seed=0, dtype=float32, scale=1) -> a normal array that does not depend on mx.random."""
    import mlx.core as mx

    def make(*shape, seed=0, dtype=mx.float32, scale=1.0):
        values = scale * np.random.default_rng([seed, *shape]).standard_normal(shape)
        return mx.array(values.astype(np.float32)).astype(dtype)

    return make


@pytest.fixture(scope="session")
def unpack():
    """unpack(weight, scales, biases, bits) -> the dequantised matrix in float32, by numpy from the packed bits."""
    import mlx.core as mx

    def dequantise(weight, scales, biases, bits):
        rows = weight.shape[0]
        stream = np.unpackbits(np.array(weight).view(np.uint8).reshape(rows, -1), axis=1, bitorder="little")
        codes = stream.reshape(rows, -1, bits) @ (1 << np.arange(bits))
        groups = codes.reshape(rows, scales.shape[1], -1)
        scales, biases = (np.array(a.astype(mx.float32)).astype(np.float64)[..., None] for a in (scales, biases))
        return mx.array((groups * scales + biases).reshape(rows, -1).astype(np.float32))

    return dequantise


@pytest.fixture(scope="session")
def make_linear(noise, unpack):
    """make_linear(out, in, bits=…) -> (FrozenLinear, its W₀ in float32, its bias in float32 or None)."""
    import mlx.core as mx

    from mesp_core.ops.frozen_matmul import FrozenLinear

    def make(out_features, in_features, bits=None, group_size=32, dtype=mx.float32, bias=False, kernel="dequantize", seed=1):
        dense = noise(out_features, in_features, seed=seed, scale=in_features**-0.5)
        b = noise(out_features, seed=seed + 1000, dtype=dtype) if bias else None
        if bits is None:
            linear = FrozenLinear(dense.astype(dtype), bias=b, kernel=kernel)
            dense = linear.weight.astype(mx.float32)
        else:
            weight, scales, biases = mx.quantize(dense, group_size=group_size, bits=bits)
            scales, biases = scales.astype(dtype), biases.astype(dtype)
            linear = FrozenLinear(weight, scales, biases, b, bits=bits, group_size=group_size, kernel=kernel)
            dense = unpack(weight, scales, biases, bits)
        return linear, dense, None if b is None else b.astype(mx.float32)

    return make


@pytest.fixture(scope="session")
def plain():
    """Every op's forward as the textbook writes it, in basic operations that MLX can differentiate by itself."""
    import mlx.core as mx

    def linear(x, weight, bias=None, a=None, b=None, scale=1.0):
        y = x @ weight.T
        if bias is not None:
            y = y + bias
        return y if a is None else y + scale * ((x @ a) @ b)

    def rms_norm(x, weight, eps):
        return x / mx.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight

    def rope(x, frequencies, position_scale=1.0, traditional=False):
        """frequencies: what a position is multiplied by, one number a pair (D/2)."""
        angle = (mx.arange(x.shape[2]) * position_scale)[:, None] * frequencies
        cos, sin = mx.cos(angle), mx.sin(angle)
        if traditional:
            even, odd = x[..., 0::2], x[..., 1::2]
            return mx.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
        first, second = mx.split(x, 2, axis=-1)
        return mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    def attention(q, k, v, scale):
        group, length = q.shape[1] // k.shape[1], q.shape[2]
        k, v = mx.repeat(k, group, axis=1), mx.repeat(v, group, axis=1)
        scores = scale * (q @ k.swapaxes(-1, -2))
        scores = mx.where(mx.arange(length)[:, None] >= mx.arange(length), scores, -1e30)
        weights = mx.exp(scores - mx.stop_gradient(scores.max(axis=-1, keepdims=True)))
        return (weights / weights.sum(axis=-1, keepdims=True)) @ v

    def gated_mlp(gate, up):
        return gate / (1 + mx.exp(-gate)) * up

    def cross_entropy(n, labels, weight):
        """Σ over labelled positions of −log softmax(n·weightᵀ)[label]; labels is a numpy array."""
        total = mx.array(0.0)
        flat, labels = n.reshape(-1, n.shape[-1]), labels.reshape(-1)
        for row in np.flatnonzero(labels >= 0):
            z = flat[int(row)] @ weight.T
            z = z - mx.stop_gradient(z.max())
            total = total + mx.log(mx.exp(z).sum()) - z[int(labels[row])]
        return total

    def block(x, dense, norms, adapters, shape, frequencies):
        """dense: projection -> (W₀, bias); adapters: projection -> (A, B, scale); shape: heads, kv_heads, eps."""

        def project(x, name):
            return linear(x, *dense[name], *adapters.get(name, ()))

        def split(x, heads):
            return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        n = rms_norm(x, norms["input_layernorm"], shape.eps)
        q, k = split(project(n, "q_proj"), shape.heads), split(project(n, "k_proj"), shape.kv_heads)
        v = split(project(n, "v_proj"), shape.kv_heads)
        o = attention(rope(q, frequencies), rope(k, frequencies), v, q.shape[-1] ** -0.5)
        x = x + project(o.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1), "o_proj")
        n = rms_norm(x, norms["post_attention_layernorm"], shape.eps)
        return x + project(gated_mlp(project(n, "gate_proj"), project(n, "up_proj")), "down_proj")

    return SimpleNamespace(
        linear=linear,
        rms_norm=rms_norm,
        rope=rope,
        attention=attention,
        gated_mlp=gated_mlp,
        cross_entropy=cross_entropy,
        block=block,
    )


@pytest.fixture(scope="session")
def qwen2_config():
    """qwen2_config(**changes) -> a small qwen2 config.json: tied head, biases on q, k and v, 4 bits in groups of 32."""

    def make(**changes):
        return {
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 300,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "quantization": {"bits": 4, "group_size": 32},
        } | changes

    return make


@pytest.fixture(scope="session")
def llama_config():
    """llama_config(**changes) -> a small llama config.json: own head, a head size of its own, llama3 frequencies,

    one projection unquantised and one with 8 bits. The original context is short, so that at its positions all three
    kinds of frequency (kept, between, stretched) occur.
    """

    def make(**changes):
        return {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "vocab_size": 301,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "tie_word_embeddings": False,
            "quantization": {
                "bits": 4,
                "group_size": 32,
                "model.layers.0.mlp.up_proj": False,
                "model.layers.1.self_attn.v_proj": {"bits": 8, "group_size": 64},
            },
        } | changes

    return make


@pytest.fixture(scope="session")
def random_tensors(noise):
    """random_tensors(config, dtype) -> every tensor of a checkpoint with that config.json, by its name in the file."""
    import mlx.core as mx

    def make(config, dtype=mx.bfloat16):
        hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        dims = config.get("head_dim") or hidden // heads
        q, kv = heads * dims, config["num_key_value_heads"] * dims
        shapes = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        matrices = {"model.embed_tokens": (config["vocab_size"], hidden)}
        if not config["tie_word_embeddings"]:
            matrices["lm_head"] = (config["vocab_size"], hidden)
        tensors, norms = {}, ["model.norm"]
        for layer in range(config["num_hidden_layers"]):
            matrices |= {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
            norms += [f"model.layers.{layer}.{name}" for name in ("input_layernorm", "post_attention_layernorm")]
            if config["model_type"] == "qwen2":
                for name in ("q_proj", "k_proj", "v_proj"):
                    path = f"model.layers.{layer}.self_attn.{name}"
                    width = matrices[path][0]
                    tensors[f"{path}.bias"] = noise(width, seed=len(tensors), scale=0.3, dtype=dtype)
        for seed, (path, shape) in enumerate(matrices.items()):
            weight = noise(*shape, seed=100 + seed, scale=1.5 * shape[1] ** -0.5)
            settings = config.get("quantization", False)
            if settings:
                settings = settings.get(path, settings)
            if settings:
                packed, scales, biases = mx.quantize(weight, group_size=settings["group_size"], bits=settings["bits"])
                tensors |= {f"{path}.weight": packed}
                tensors |= {f"{path}.scales": scales.astype(dtype), f"{path}.biases": biases.astype(dtype)}
            else:
                tensors[f"{path}.weight"] = weight.astype(dtype)
        for seed, path in enumerate(norms):
            tensors[f"{path}.weight"] = (1 + noise(hidden, seed=500 + seed, scale=0.2)).astype(dtype)
        return tensors

    return make


@pytest.fixture(scope="session")
def write_folder():
    """write_folder(folder, config, tensors, shards=1) -> folder, now a checkpoint; several shards get an index file."""
    import mlx.core as mx

    def write(folder, config, tensors, shards=1):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        if shards == 1:
            mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
            return folder
        names, weight_map = sorted(tensors), {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in names[number::shards]}
            mx.save_safetensors(str(folder / file), part, {"format": "mlx"})
            weight_map |= dict.fromkeys(part, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder

    return write


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory, qwen2_config, random_tensors, write_folder):
    """A small qwen2 checkpoint in one file with bfloat16 scales. To be read only."""
    config = qwen2_config()
    return write_folder(tmp_path_factory.mktemp("qwen2"), config, random_tensors(config))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory, llama_config, random_tensors, write_folder):
    """A small llama checkpoint in two shards with float16 scales. To be read only."""
    import mlx.core as mx

    config = llama_config()
    return write_folder(tmp_path_factory.mktemp("llama"), config, random_tensors(config, mx.float16), shards=2)


@pytest.fixture(params=["qwen2", "llama"])
def folder(request):
    """Each of the two small checkpoints in turn."""
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture(scope="session")
def their_logits():
    """their_logits(folder, ids) -> the logits of mlx-lm's own model in float32; it raises what mlx-lm raises."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    def compute(folder, ids):
        model, _ = load_model(folder)
        model.set_dtype(mx.float32)
        logits = model(mx.array(ids))
        mx.eval(logits)
        return logits

    return compute


@pytest.fixture(scope="session")
def our_logits():
    """our_logits(folder, ids) -> the same of this package's, without adapters; it raises what opening raises."""
    import mlx.core as mx

    from mesp_core.models.checkpoint import open_checkpoint
    from mesp_core.settings.run_config import RunConfig
    from mesp_core.training.build import build_method

    def compute(folder, ids):
        config = RunConfig(method="mesp", dtype="float32", seq_len=ids.shape[1])
        method, _ = build_method(config, open_checkpoint(folder), {})
        logits = method.logits({}, ids)
        mx.eval(logits)
        method.close()
        return logits

    return compute
