"""Block inputs between forward and backward: exact, last first, on disk without holding memory, and every fault."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import psutil  # noqa: F401 (before a test makes the platform another)
import pytest

from mesp_core.engine import block_inputs
from mesp_core.engine.block_inputs import InMemory, OnDisk, file_system, scratch_folder
from mesp_core.errors import MespError, UsageError

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
MB = 1024 * 1024
NEVER = 999_999_999  # no process has this number


@pytest.fixture
def make_disk(tmp_path):
    """make_disk(**options) -> a stack in tmp_path/scratch, wherever that lies; closed after the test."""
    made = []

    def make(**options):
        made.append(OnDisk(tmp_path / "scratch", **{"allow_tmpfs": True} | options))
        return made[-1]

    yield make
    for stack in made:
        stack.close()


@pytest.fixture(params=["memory", "disk"])
def stack(request, make_disk):
    """Each kind of stack in turn."""
    return InMemory() if request.param == "memory" else make_disk()


def same(one, other):
    """The same bits, also where these are NaN."""
    bits = {4: mx.uint32, 2: mx.uint16}[other.dtype.size]
    return one.shape == other.shape and one.dtype == other.dtype and mx.array_equal(one.view(bits), other.view(bits)).item()


def test_the_last_comes_first_and_exactly(stack, noise):
    values = [noise(2, 3 + i, 8, seed=i, scale=1e3).astype(dtype) for i, dtype in enumerate(DTYPES)]
    values += [mx.array([mx.nan, mx.inf, -mx.inf, -0.0, 6e-8]).astype(dtype) for dtype in DTYPES]
    for value in values:
        stack.push(value)
    for value in reversed(values):
        assert same(stack.pop(), value)
    with pytest.raises(IndexError):
        stack.pop()


def test_what_is_pushed_is_evaluated_and_may_lie_anyhow(stack, noise):
    x = noise(3, 4, 6)
    views = [x * 2, x.swapaxes(0, 2), x[:, 1:3], mx.broadcast_to(x[:1], (5, 4, 6)), x[..., ::2]]
    for view in views:
        stack.push(view)
    for view in reversed(views):
        assert same(stack.pop(), view)


def test_what_is_popped_is_an_array_of_its_own(make_disk, noise):
    stack, values = make_disk(), [noise(64, 64, seed=i) for i in range(2)]
    for value in values:
        stack.push(value)
    popped = [stack.pop(), stack.pop()]
    stack.push(mx.zeros((64, 64)))  # where the first one lay
    stack.close()
    assert same(popped[0], values[1]) and same(popped[1], values[0])


def test_the_file_is_used_anew_at_each_step_whatever_its_length(make_disk, noise):
    stack = make_disk()
    sizes = []
    for length in (5, 9, 2, 9):
        values = [noise(1, length, 16, seed=i).astype(mx.bfloat16) for i in range(3)]
        for value in values:
            stack.push(value)
        sizes.append(os.fstat(stack._file.fileno()).st_size)
        assert all(same(stack.pop(), value) for value in reversed(values))
    assert sizes == [3 * 5 * 32, 3 * 9 * 32, 3 * 9 * 32, 3 * 9 * 32]


def test_after_a_step_that_broke_off(stack, noise):
    for seed in range(3):
        stack.push(noise(4, 4, seed=seed))
    stack.pop()
    stack.clear()
    with pytest.raises(IndexError):
        stack.pop()
    value = noise(2, 8, seed=9)
    stack.push(value)
    assert same(stack.pop(), value)


def test_on_disk_holds_no_memory_between_push_and_pop(make_disk, exact_memory):
    """Neither MLX nor the process: what a push and a pop need is the array itself."""
    stack, before = make_disk(), mx.get_active_memory()
    for _ in range(8):
        x = mx.ones((1, 256, 1024))  # 1 MB
        mx.eval(x)
        mx.reset_peak_memory()
        stack.push(x)
        assert mx.get_peak_memory() - before <= MB + 64
        x = None
        assert mx.get_active_memory() - before <= 64
    mx.reset_peak_memory()
    for _ in range(8):
        assert stack.pop().shape == (1, 256, 1024)
    assert mx.get_peak_memory() - before <= MB + 64


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_private_memory_does_not_grow_with_what_is_on_disk(make_disk, exact_memory):
    def private():
        return 1024 * int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

    def step(count):
        for _ in range(count):
            stack.push(mx.ones((1, 256, 1024)))
        most = private()
        for _ in range(count):
            stack.pop()
        return most

    stack = make_disk()
    step(4)
    before = private()
    assert step(32) - before < 3 * MB  # of 32


# --- the file


def test_the_file_has_no_name_and_close_gives_it_back(tmp_path, noise):
    folder = tmp_path / "made" / "for it"
    stack = OnDisk(folder, allow_tmpfs=True)
    stack.push(noise(4, 4))
    number = stack._file.fileno()
    assert list(folder.iterdir()) == []
    assert os.fstat(number).st_nlink == 0 and os.fstat(number).st_mode & 0o077 == 0
    stack.close()
    with pytest.raises(OSError):
        os.fstat(number)
    stack.close()
    with pytest.raises(MespError, match="cannot be written"):
        stack.push(noise(4, 4))


def test_a_name_that_cannot_go_at_once_goes_later(tmp_path, monkeypatch, noise):
    folder = tmp_path / "scratch"
    with monkeypatch.context() as locked:

        def refuse(self, *_, **__):
            raise PermissionError(errno.EACCES, "busy")

        locked.setattr(Path, "unlink", refuse)
        closed, left = (OnDisk(folder, allow_tmpfs=True) for _ in range(2))
    assert len(list(folder.iterdir())) == 2
    assert all(file.name.startswith(f"block-inputs-{os.getpid()}-") for file in folder.iterdir())
    closed.push(noise(2, 2))
    closed.close()
    (name,) = folder.iterdir()
    OnDisk(folder, allow_tmpfs=True).close()
    assert name.exists()  # its process is alive
    gone = name.rename(folder / name.name.replace(str(os.getpid()), str(NEVER)))
    (folder / "notes.txt").write_text("mine")
    (folder / f"block-inputs-{NEVER}.txt").write_text("mine, too")
    (folder / f"block-inputs-{NEVER}-of-today.txt").write_text("mine, too")
    OnDisk(folder, allow_tmpfs=True).close()
    assert not gone.exists()
    assert len(list(folder.iterdir())) == 3
    left.close()


def test_a_killed_process_leaves_nothing(tmp_path):
    program = """
import os, signal, sys
from pathlib import Path
import mlx.core as mx
from mesp_core.engine.block_inputs import OnDisk
stack = OnDisk(Path(sys.argv[1]), allow_tmpfs=True)
stack.push(mx.ones((64, 64)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(block_inputs.__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "scratch"], env=environment, timeout=60)
    assert done.returncode == -9
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_usual_folder_is_in_the_cache(own_cache, tmp_path, monkeypatch):
    assert scratch_folder("") == own_cache / "scratch"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert scratch_folder("~/a b") == tmp_path / "a b"
    monkeypatch.chdir(tmp_path)
    assert scratch_folder("here") == tmp_path / "here"


# --- faults


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_says_so_at_the_first_push(make_disk, tmp_path, monkeypatch):
    """Before anything is written: the room for the whole step is claimed."""
    claimed = []

    def claim(_, offset, size):
        claimed.append((offset, size))
        no_room()

    monkeypatch.setattr(os, "posix_fallocate", claim, raising=False)
    stack = make_disk(pushes=24)
    with pytest.raises(MespError) as caught:
        stack.push(mx.zeros((256, 1024)))
    assert claimed == [(0, 24 * MB)]
    message = str(caught.value)
    assert caught.value.exit_code == 1 and not isinstance(caught.value, UsageError)
    for part in ("24.0 MB", str(tmp_path / "scratch"), "are free", "No space left", "--scratch-dir"):
        assert part in message


def test_a_disk_that_is_full_where_room_cannot_be_claimed(make_disk, monkeypatch, noise):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    stack, value = make_disk(), noise(4, 4)
    stack.push(value)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", no_room)
        with pytest.raises(MespError, match=r"No space left.*--scratch-dir"):
            stack.push(noise(4, 4, seed=2))
    assert same(stack.pop(), value)  # what could not be written was not pushed


def test_where_no_room_can_be_claimed_at_all_it_is_looked_up(make_disk, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    stack = make_disk(pushes=2**40)
    with pytest.raises(MespError, match="No space left"):
        stack.push(mx.zeros((256, 1024)))
    make_disk(pushes=2).push(mx.zeros((4, 4)))


def test_a_write_in_parts_and_one_that_fails(make_disk, monkeypatch, noise):
    stack, value, write = make_disk(), noise(64, 64), os.pwrite
    with monkeypatch.context() as short:
        short.setattr(os, "pwrite", lambda number, data, offset: write(number, data[:1000], offset))
        stack.push(value)
    assert same(stack.pop(), value)

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(MespError, match=r"cannot be written \(Input/output error\).*--scratch-dir"):
        stack.push(value)


def test_what_cannot_be_read_back(make_disk, noise):
    stack = make_disk()
    stack.push(noise(64, 64))
    os.ftruncate(stack._file.fileno(), 1000)
    with pytest.raises(MespError, match="cannot be read"):
        stack.pop()


@pytest.mark.parametrize("kind", ["a file", "below a file", "impossible", "read-only"])
def test_a_folder_that_cannot_be_used(tmp_path, kind):
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    names = {"a file": "file", "below a file": "file/scratch", "impossible": "a\0b", "read-only": "locked"}
    if kind == "read-only" and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(UsageError) as caught:
        OnDisk(tmp_path / names[kind], allow_tmpfs=True)
    assert str(caught.value).startswith(f"scratch_dir: {tmp_path}") and "--scratch-dir" in str(caught.value)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a tmpfs")
def test_a_folder_in_memory_is_refused_unless_insisted_on(monkeypatch):
    folder = Path("/dev/shm") / f"mesp-test-{os.getpid()}" / "scratch"
    with pytest.raises(UsageError, match=f"scratch_dir: {folder} is on a tmpfs, which is memory.*--scratch-dir.*tmpfs"):
        OnDisk(folder)
    assert not folder.parent.exists()
    try:
        OnDisk(folder, allow_tmpfs=True).close()
    finally:
        folder.rmdir()
        folder.parent.rmdir()


def test_the_file_system_is_known_by_its_mount(tmp_path, monkeypatch):
    """On Linux by the device's number, elsewhere by the mount points that psutil names; both agree here."""
    if sys.platform == "linux":
        assert file_system(Path("/proc")) == "proc"
        here = file_system(tmp_path)
        monkeypatch.setattr(sys, "platform", "darwin")
        assert file_system(Path("/proc")) == "proc"
        assert here in ("", file_system(tmp_path))
    else:
        assert file_system(tmp_path)
