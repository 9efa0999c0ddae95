"""The aligned copy: its layout, reuse, removal and faults; and that a device which cannot use it falls back.

Only Metal adopts host memory. Elsewhere a stand-in for that one function copies it, and all around it is what runs on Metal.
"""

import errno
import mmap
import os

import mlx.core as mx
import numpy as np
import pytest

from mesp_core.errors import CheckpointError, MespError
from mesp_core.files.cache import cache_dir
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.weights import mapped
from mesp_core.weights.weights import Weights


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def adopted(monkeypatch):
    """Host arrays that were adopted, by a stand-in that copies; the trial, which would notice, is passed."""
    seen = []

    def stand_in(host):
        seen.append(host)
        return mx.array(host)

    monkeypatch.setattr(mapped, "adopt", stand_in)
    monkeypatch.setattr(mapped, "why_not", lambda: None)
    return seen


def copies():
    folder = cache_dir() / "mapped"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_every_matrix_begins_and_ends_between_pages(folder, adopted):
    checkpoint = open_checkpoint(folder)
    weights = Weights(checkpoint, mx.float32, mode="mapped")
    (file,) = copies()
    assert file.stat().st_size % mapped.PAGE == 0
    assert len(adopted) == sum(len(linear.tensors.keys() - {"bias"}) for linear in checkpoint.linears.values())
    start = np.array([host.ctypes.data for host in adopted])
    size = np.array([host.nbytes for host in adopted])
    # A map begins at a page of this machine, which may be smaller than a page of Apple's; what follows counts from there.
    assert start.min() % mmap.PAGESIZE == 0
    assert not ((start - start.min()) % mapped.PAGE).any() and not (size % mapped.PAGE).any()
    assert not any(host.flags.writeable for host in adopted)
    assert (np.sort(start)[1:] >= (start + size)[np.argsort(start)][:-1]).all()
    assert weights.mode == "mapped" and weights.fallback is None and weights.mapped_bytes == size.sum()


@pytest.mark.parametrize("kernel", ["quantized", "dequantize"])
def test_mapped_and_streamed_are_equal(folder, kernel, adopted):
    """The two checkpoints hold plain, 4-bit and 8-bit matrices, bfloat16 and float16, in one file and in two."""
    checkpoint = open_checkpoint(folder)
    in_place, streamed = Weights(checkpoint, mx.float32, kernel, "mapped"), Weights(checkpoint, mx.float32, kernel)
    for layer in range(2):
        assert in_place.block(layer) is in_place.block(layer) is in_place.lazy_block(layer)
        mine, theirs = in_place.block(layer), streamed.block(layer)
        for name, linear in theirs.linears.items():
            for part in ("weight", "scales", "biases", "bias"):
                a, b = getattr(mine.linears[name], part), getattr(linear, part)
                assert (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and mx.array_equal(a, b)))
        assert all(mx.array_equal(mine.norms[name], theirs.norms[name]) for name in theirs.norms)
    ids = np.array([[3, 0, 299]])
    assert mx.array_equal(in_place.embed(ids), streamed.embed(ids))
    assert mx.array_equal(in_place.head().part(5, 90).weight, streamed.head().part(5, 90).weight)
    assert mx.array_equal(in_place.head().rows(ids[0]), streamed.head().rows(ids[0]))


def test_naming_dtype_and_shape_copies_nothing(qwen2_folder, adopted, exact_memory):
    """Beyond what the stand-in copies, which is whole pages, nothing is allocated: bfloat16 views included."""
    checkpoint = open_checkpoint(qwen2_folder)
    maps = Weights(checkpoint, mx.float32)._maps
    mapped.open_copy(checkpoint, maps)
    adopted.clear()
    before = mx.get_active_memory()
    arrays = mapped.open_copy(checkpoint, maps)
    assert any(array.dtype == mx.bfloat16 for array in arrays.values())
    grown = mx.get_active_memory() - before
    assert sum(host.nbytes for host in adopted) <= grown <= sum(host.nbytes for host in adopted) + 64 * len(adopted)


def test_a_copy_is_written_once(qwen2_folder, adopted):
    checkpoint = open_checkpoint(qwen2_folder)
    Weights(checkpoint, mx.float32, mode="mapped")
    (file,) = copies()
    os.utime(file, ns=(1, 1))
    Weights(open_checkpoint(qwen2_folder), mx.float32, mode="mapped")
    assert copies() == [file] and file.stat().st_mtime_ns == 1
    os.truncate(file, mapped.PAGE)  # not whole: written again
    Weights(checkpoint, mx.float32, mode="mapped")
    assert copies() == [file] and file.stat().st_size > mapped.PAGE


def test_older_copies_of_the_same_folder_go_and_others_stay(qwen2_folder, llama_folder, tiny_copy, adopted):
    Weights(open_checkpoint(qwen2_folder), mx.float32, mode="mapped")
    Weights(open_checkpoint(llama_folder), mx.float32, mode="mapped")
    others = copies()
    Weights(open_checkpoint(tiny_copy), mx.float32, mode="mapped")
    (old,) = set(copies()) - set(others)
    name = old.name.rsplit("-", 1)[0]
    abandoned, written_now = (old.parent / f".{name}-fingerprint-{end}" for end in ("abandoned", "now"))
    for file in (abandoned, written_now):
        file.write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    os.utime(tiny_copy / "model.safetensors", ns=(1, 1))
    Weights(open_checkpoint(tiny_copy), mx.float32, mode="mapped")
    left = set(copies()) - set(others)
    assert old not in left and abandoned not in left and written_now in left and len(left) == 2
    assert set(others) <= set(copies())


def test_a_full_disk_is_said_and_leaves_nothing(qwen2_folder, adopted, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mapped, "to_disk", full)
    with pytest.raises(MespError, match=r"weights=mapped.*MB.*No space left on device.*weights=streamed"):
        Weights(open_checkpoint(qwen2_folder), mx.float32, mode="mapped")
    assert copies() == []


def test_a_cache_that_is_no_folder_is_said(qwen2_folder, adopted):
    cache_dir().write_text("a file")
    with pytest.raises(MespError, match="weights=mapped"):
        Weights(open_checkpoint(qwen2_folder), mx.float32, mode="mapped")


def test_a_checkpoint_that_changes_while_it_is_copied(tiny_copy, adopted, monkeypatch):
    checkpoint = open_checkpoint(tiny_copy)

    def change(descriptor):
        os.utime(tiny_copy / "model.safetensors", ns=(1, 1))

    monkeypatch.setattr(mapped, "to_disk", change)
    with pytest.raises(CheckpointError, match="changed or removed"):
        Weights(checkpoint, mx.float32, mode="mapped")
    assert copies() == []


@pytest.mark.skipif(mx.metal.is_available(), reason="Metal adopts host memory")
def test_where_it_cannot_work_nothing_is_written_and_weights_are_streamed(qwen2_folder):
    weights = Weights(open_checkpoint(qwen2_folder), mx.float32, mode="mapped")
    assert weights.mode == "streamed" and "cannot use the host's memory on this device" in weights.fallback
    assert weights.lazy_block(0).linears["q_proj"].stored
    assert copies() == []


def test_the_trial_notices_a_copy(monkeypatch):
    monkeypatch.setattr(mapped, "adopt", mx.array)
    assert mapped.why_not() == "MLX copies the host's memory on this device."


def test_the_trial_notices_wrong_values_and_wrong_products(monkeypatch):
    monkeypatch.setattr(mapped, "_why_memory_is_not_shared", lambda: None)
    monkeypatch.setattr(mapped, "adopt", mx.array)
    assert mapped.why_not() is None
    right, calls = mx.quantized_matmul, []

    def wrong_first(*arrays, **options):
        calls.append(1)
        return right(*arrays, **options) * (2 if len(calls) == 1 else 1)

    monkeypatch.setattr(mx, "quantized_matmul", wrong_first)
    assert "quantized_matmul is wrong" in mapped.why_not()
    monkeypatch.setattr(mapped, "adopt", lambda host: mx.array(host) + 1)
    assert "other values" in mapped.why_not()


def test_an_mlx_without_asarray(monkeypatch):
    monkeypatch.delattr(mx, "asarray")
    assert "0.32" in mapped.why_not()


@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal")
def test_on_metal_the_trial_passes():
    assert mapped.why_not() is None
