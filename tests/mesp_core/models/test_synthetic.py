"""Random checkpoints: exact geometries, repeatable bytes, numbers of the right size, nothing half-written."""

import json
import os
import time

import numpy as np
import pytest

from mesp_core.data.tokenise import tokenise
from mesp_core.errors import MespError, UsageError
from mesp_core.files.cache import cache_dir
from mesp_core.models import synthetic
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.families import architecture_from_config

SMALL = {
    "qwen2": {
        "model_type": "qwen2",
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2560,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 256,
    },
    "llama": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    },
}

# DESIGN.md, section 7: hidden, layers, heads, KV heads, head dim, MLP, vocabulary, θ, ε; then the parameters
# of the published models.
KNOWN = {
    "qwen2.5-0.5b": (896, 24, 14, 2, 64, 4864, 151936, 1e6, 1e-6, 494_032_768),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 128, 8960, 151936, 1e6, 1e-6, 1_543_714_304),
    "qwen2.5-3b": (2048, 36, 16, 2, 128, 11008, 151936, 1e6, 1e-6, 3_085_938_688),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, 5e5, 1e-5, 1_235_814_400),
    "llama-3.2-3b": (3072, 28, 24, 8, 128, 8192, 128256, 5e5, 1e-5, 3_212_749_824),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_geometries_are_exact(name, tmp_path):
    a = architecture_from_config(tmp_path / "config.json", synthetic.GEOMETRIES[name] | {"hidden_act": "silu"})
    sizes = (a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.num_key_value_heads, a.head_dim)
    rest = (a.intermediate_size, a.vocab_size, a.rope.theta, a.rms_norm_eps)
    assert (*sizes, *rest) == KNOWN[name][:-1]
    assert a.tie_word_embeddings
    llama = name.startswith("llama")
    assert a.rope.llama3 == ((32.0, 1.0, 4.0, 8192.0) if llama else None)
    assert a.biases == (frozenset() if llama else {"q_proj", "k_proj", "v_proj"})
    matrices = a.linears().values()
    parameters = sum(out * inner + out * bias for out, inner, bias in matrices) + sum(a.norms().values())
    assert parameters == KNOWN[name][-1]


def test_there_are_no_others():
    assert set(synthetic.GEOMETRIES) == set(KNOWN)


@pytest.mark.parametrize("name", ["", "qwen", "qwen2.5-7b", "../tiny"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(UsageError) as raised:
        synthetic.ensure(name)
    assert f"synthetic:{name} is unknown" in str(raised.value)
    assert all(f"synthetic:{known}" in str(raised.value) for known in KNOWN)


@pytest.fixture(scope="module", params=SMALL)
def written(request, tmp_path_factory):
    """A small checkpoint of each kind: its folder, its geometry, and the progress that was told."""
    folder, told = tmp_path_factory.mktemp("synthetic") / request.param, []
    synthetic.write_checkpoint(folder, SMALL[request.param], lambda message, fraction: told.append(fraction))
    return folder, SMALL[request.param], told


@pytest.fixture
def tensors(written):
    import mlx.core as mx

    return mx.load(str(written[0] / "model.safetensors"))


def matrix(tensors, path):
    """A module's float matrix, by numpy from the stored codes."""
    import mlx.core as mx

    packed = np.array(tensors[f"{path}.weight"])
    codes = (packed[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(len(packed), -1)
    scales, biases = (np.array(tensors[f"{path}.{part}"].astype(mx.float32)) for part in ("scales", "biases"))
    return codes * scales.repeat(64, axis=1) + biases.repeat(64, axis=1)


class TestWritten:
    def test_it_opens_as_what_was_asked_for(self, written):
        folder, geometry, _ = written
        checkpoint = open_checkpoint(folder)
        expected = architecture_from_config(folder / "config.json", geometry)
        assert checkpoint.architecture == expected
        assert (checkpoint.bits, checkpoint.float_dtype) == (4, "BF16")
        assert {linear.group_size for linear in checkpoint.linears.values()} == {64}
        assert checkpoint.head.path == ("model.embed_tokens" if expected.tie_word_embeddings else "lm_head")

    def test_the_biases_of_q_k_and_v_are_there_and_not_zero(self, written, tensors):
        import mlx.core as mx

        names = {name for name in tensors if name.endswith(".bias")}
        expected = {f"model.layers.{n}.self_attn.{p}_proj.bias" for n in (0, 1) for p in "qkv"}
        assert names == (expected if written[1]["model_type"] == "qwen2" else set())
        for name in names:
            assert tensors[name].dtype == mx.bfloat16
            assert 0.05 < mx.std(tensors[name].astype(mx.float32)).item() < 0.2

    def test_everything_but_the_codes_is_bfloat16(self, tensors):
        import mlx.core as mx

        for name, array in tensors.items():
            packed = name.endswith(".weight") and "norm" not in name
            assert array.dtype == (mx.uint32 if packed else mx.bfloat16), name

    def test_matrices_keep_activations_at_their_size(self, written, tensors):
        """Standard deviation 1/√in; what is added to the residual stream is smaller. Centred on zero."""
        architecture = open_checkpoint(written[0]).architecture
        for path, (out_features, in_features, _) in architecture.linears().items():
            values = matrix(tensors, path)
            assert values.shape == (out_features, in_features)
            expected = in_features**-0.5 * (0.15 if path.endswith(("o_proj", "down_proj")) else 1)
            assert values.std() == pytest.approx(expected, rel=0.05), path
            assert abs(values.mean()) < 0.05 * expected, path

    def test_modules_differ(self, tensors):
        """One random stream for all would make layers equal, and errors that mix them up invisible."""
        firsts = {bytes(np.array(array).reshape(-1)[:8]) for name, array in tensors.items() if array.dtype.size == 4}
        assert len(firsts) == sum(array.dtype.size == 4 for array in tensors.values()) > len(PROJECTIONS)

    def test_norms_are_near_one(self, tensors):
        import mlx.core as mx

        for name, array in tensors.items():
            if "norm" in name:
                values = np.array(array.astype(mx.float32))
                assert abs(values.mean() - 1) < 0.05 and 0.05 < values.std() < 0.15

    def test_progress_rises_to_one(self, written):
        told = written[2]
        assert told == sorted(told) and told[-1] == 1.0 and len(told) > 10

    def test_written_again_it_is_the_same(self, written, tmp_path, monkeypatch):
        """Also in smaller pieces: the random codes do not depend on how many rows are made at once."""
        folder, geometry, _ = written
        monkeypatch.setattr(synthetic, "ROWS_AT_ONCE", 100)
        synthetic.write_checkpoint(tmp_path / "again", geometry)
        for file in folder.iterdir():
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
        assert [path.name for path in tmp_path.iterdir()] == ["again"]

    def test_its_tokenizer_fits(self, written, tmp_path):
        file = tmp_path / "data.jsonl"
        file.write_text(json.dumps([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "there."}]))
        vocabulary = written[1]["vocab_size"]
        tokens = tokenise(file, written[0], seq_len=32, loss_on="all", vocab_size=vocabulary)
        assert len(tokens) == 1 and tokens.max_id < vocabulary

    def test_mlx_lm_reads_it(self, written):
        import mlx.core as mx
        from mlx_lm.utils import load_model

        model, _ = load_model(written[0])
        logits = model(mx.array([[5, 6, 7]]))
        assert logits.shape == (1, 3, written[1]["vocab_size"])
        assert mx.isfinite(logits).all().item() and mx.std(logits).item() > 0.1


class TestEnsure:
    def test_it_is_written_once(self, monkeypatch, tmp_path):
        monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
        monkeypatch.setitem(synthetic.GEOMETRIES, "qwen2.5-0.5b", SMALL["qwen2"])
        folder = synthetic.ensure("qwen2.5-0.5b")
        assert folder.is_relative_to(cache_dir()) and open_checkpoint(folder).parameters > 0
        before = (folder / "model.safetensors").stat()
        assert synthetic.ensure("qwen2.5-0.5b") == folder
        after = (folder / "model.safetensors").stat()
        assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)

    def test_a_write_that_fails_leaves_nothing(self, monkeypatch, tmp_path):
        def disk_full(file, name, dtype, shape):
            if name.startswith("model.layers.1."):
                raise OSError(28, "No space left on device")
            file.write(b"\0" * 10)

        monkeypatch.setattr(synthetic, "_write_tensor", disk_full)
        with pytest.raises(MespError, match="No space left on device"):
            synthetic.write_checkpoint(tmp_path / "model", SMALL["qwen2"])
        assert list(tmp_path.iterdir()) == []

    def test_neither_does_one_that_is_interrupted(self, tmp_path):
        def cancel(message, fraction):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            synthetic.write_checkpoint(tmp_path / "model", SMALL["qwen2"], cancel)
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(MespError, match="cannot be written"):
            synthetic.write_checkpoint(tmp_path / "file" / "model", SMALL["qwen2"])

    def test_another_process_was_faster(self, monkeypatch, tmp_path):
        """What it wrote stays, and nothing lies beside it."""
        right = synthetic._write

        def late(folder, geometry, on_progress):
            (tmp_path / "model").mkdir()
            for where in (tmp_path / "model", folder):
                right(where, geometry, on_progress)

        monkeypatch.setattr(synthetic, "_write", late)
        synthetic.write_checkpoint(tmp_path / "model", SMALL["qwen2"])
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert open_checkpoint(tmp_path / "model").architecture.hidden_size == 128


def test_what_a_killed_process_left_goes_and_what_another_is_writing_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(synthetic.GEOMETRIES, "small", SMALL["qwen2"])
    store, old = tmp_path / "synthetic", time.time() - 2 * synthetic.ABANDONED_S
    name = synthetic._folder("small").name
    for left, age in ((f".{name}-abandone", old), (f".{name}-inthewri", time.time()), (f".{name}-notes", old)):
        (store / left).mkdir(parents=True)
        (store / left / "model.safetensors").write_text("half")
        os.utime(store / left / "model.safetensors", (age, age))
        os.utime(store / left, (old, old))
    synthetic.ensure("small")
    assert sorted(path.name for path in store.iterdir()) == [f".{name}-inthewri", f".{name}-notes", name]
