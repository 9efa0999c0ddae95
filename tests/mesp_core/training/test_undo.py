"""Taking back a step that broke off: bit for bit, over a scratch file, and known not to be possible where that fails."""

import errno
import os

import mlx.core as mx
import pytest

from mesp_core.engine.block_inputs import InMemory, OnDisk
from mesp_core.errors import MespError, UsageError
from mesp_core.training.undo import Undo

PATHS = [f"model.layers.{layer}.mlp.up_proj" for layer in range(3)]


@pytest.fixture(params=["float32", "bfloat16", "float16"])
def adapters(request, noise):
    dtype = getattr(mx, request.param)
    tree = {path: {"lora_a": noise(5, 2, seed=n), "lora_b": noise(2, 7, seed=n + 9)} for n, path in enumerate(PATHS)}
    tree = {path: {name: array.astype(dtype) for name, array in pair.items()} for path, pair in tree.items()}
    mx.eval(tree)
    return tree


def bits(adapters):
    return {
        (path, name): (a.dtype, a.shape, bytes(memoryview(a))) for path, pair in adapters.items() for name, a in pair.items()
    }


def change(adapters, *paths):
    for path in paths:
        adapters[path] = {name: array * 3 + 1 for name, array in adapters[path].items()}
        mx.eval(adapters[path])


@pytest.fixture
def told():
    return []


@pytest.fixture
def on_disk(adapters, tmp_path, told):
    return Undo(adapters, lambda: OnDisk(tmp_path / "scratch", allow_tmpfs=True), told.append)


def test_several_parts_are_taken_back_bit_for_bit(adapters, on_disk, told, tmp_path):
    for _ in range(3):  # the same file each time
        before = bits(adapters)
        on_disk.begin_step()
        assert on_disk.whole
        for part in (PATHS[2:], PATHS[1:2]):
            on_disk.lay_aside(part)
            assert not on_disk.whole
            change(adapters, *part)
        assert bits(adapters) != before
        on_disk.restore()
        assert on_disk.whole and bits(adapters) == before
        change(adapters, *PATHS)  # a step that goes well
    on_disk.close()
    assert told == [] and list((tmp_path / "scratch").iterdir()) == []


def test_a_step_that_is_whole_is_not_taken_back(adapters, on_disk):
    on_disk.lay_aside(PATHS[:1])
    change(adapters, *PATHS[:1])
    on_disk.begin_step()
    before = bits(adapters)
    on_disk.restore()
    assert on_disk.whole and bits(adapters) == before
    on_disk.close()


def test_where_all_change_at_once_no_file_is_made(adapters, told):
    """Only the one update could break off, and if it does, nobody says that the adapters are whole."""

    def refuse():
        raise AssertionError("not needed")

    undo = Undo(adapters, refuse, told.append)
    undo.begin_step()
    undo.lay_aside(PATHS)
    undo.restore()
    assert not undo.whole
    undo.begin_step()
    assert undo.whole
    undo.close()
    assert told == []


def test_a_folder_that_is_not_there_to_be_had(adapters, tmp_path, told):
    """Told once; from then on a step that breaks off is known to be broken, and one that is whole to be whole."""
    (tmp_path / "file").write_text("")
    undo = Undo(adapters, lambda: OnDisk(tmp_path / "file" / "scratch", allow_tmpfs=True), told.append)
    for _ in range(2):
        undo.begin_step()
        assert undo.whole
        undo.lay_aside(PATHS[:1])
        change(adapters, *PATHS[:1])
        changed = bits(adapters)
        undo.restore()
        assert not undo.whole and bits(adapters) == changed
    undo.begin_step()
    assert undo.whole and len(told) == 1 and "scratch_dir" in told[0] and "cannot be taken back" in told[0]
    undo.close()


class Failing(InMemory):
    """A stack whose push or pop fails after so many."""

    def __init__(self, pushes=10**9, pops=10**9):
        super().__init__()
        self.pushes, self.pops, self.closed = pushes, pops, False

    def push(self, x):
        self.pushes -= 1
        if self.pushes < 0:
            raise MespError("No room.")
        super().push(x)

    def pop(self):
        self.pops -= 1
        if self.pops < 0:
            raise MespError("It cannot be read.")
        return super().pop()

    def close(self):
        super().close()
        self.closed = True


def test_a_disk_that_fills_in_the_middle_of_a_step(adapters, told):
    """What the file holds of it is given back, as the adapter has to be saved somewhere."""
    stack = Failing(pushes=3)
    undo = Undo(adapters, lambda: stack, told.append)
    undo.begin_step()
    for part in (PATHS[2:], PATHS[1:2]):
        undo.lay_aside(part)
        change(adapters, *part)
    undo.restore()
    assert not undo.whole and len(told) == 1 and told[0].startswith("No room. ") and stack.closed


def test_a_file_that_cannot_be_read_back(adapters, told):
    undo = Undo(adapters, lambda: Failing(pops=1), told.append)
    undo.begin_step()
    undo.lay_aside(PATHS[:1])
    change(adapters, *PATHS[:1])
    undo.restore()
    assert not undo.whole
    undo.begin_step()
    assert undo.whole


def test_a_real_disk_that_is_full(adapters, tmp_path, told, monkeypatch):
    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    undo = Undo(adapters, lambda: OnDisk(tmp_path, allow_tmpfs=True, holds="The adapters before a step"), told.append)
    undo.lay_aside(PATHS[:1])
    assert not undo.whole and told[0].startswith("The adapters before a step need 0.0 MB in ")


def test_without_a_stack_a_step_under_way_is_not_whole(adapters):
    undo = Undo(adapters)
    undo.begin_step()
    assert undo.whole
    undo.lay_aside(PATHS[:1])
    undo.restore()
    assert not undo.whole
    undo.close()


def test_a_folder_in_memory_is_refused_as_elsewhere(adapters, told, monkeypatch, tmp_path):
    monkeypatch.setattr("mesp_core.engine.block_inputs.file_system", lambda folder: "tmpfs")
    undo = Undo(adapters, lambda: OnDisk(tmp_path), told.append)
    undo.lay_aside(PATHS[:1])
    assert "is memory" in told[0]
    with pytest.raises(UsageError):
        OnDisk(tmp_path)
