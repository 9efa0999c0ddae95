"""Data that can be read only once: pipes are copied, devices refused, and nothing stays behind."""

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from mesp_core.data.read_once import CHUNK, HashedLines, opened, readable
from mesp_core.data.tokenise import tokenise
from mesp_core.errors import MespError, UsageError

ROWS = b'{"text": "hello world"}\n{"text": "yes and no"}\n'


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "rows.fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def write_later(fifo, content):
    thread = threading.Thread(target=lambda: fifo.write_bytes(content), daemon=True)
    thread.start()
    return thread


class TestHashedLines:
    @pytest.mark.parametrize("lines", [0, 1, 2, 3])
    def test_the_hash_is_that_of_the_whole_file(self, tmp_path, lines):
        file = tmp_path / "file"
        file.write_bytes(ROWS + b"no end of line")
        with opened(file) as source:
            read = [line for line, _ in zip(source, range(lines), strict=False)]
            assert read == (ROWS + b"no end of line").splitlines(keepends=True)[:lines]
            assert source.sha256() == hashlib.sha256(ROWS + b"no end of line").hexdigest()

    def test_one_larger_than_what_is_read_at_once(self, tmp_path):
        file = tmp_path / "file"
        content = b"x" * (2 * CHUNK + 7) + b"\n" + b"y" * CHUNK
        file.write_bytes(content)
        with opened(file) as source:
            assert len(next(iter(source))) == 2 * CHUNK + 8
            assert source.sha256() == hashlib.sha256(content).hexdigest()

    def test_one_that_is_not_there_or_fails_is_a_usage_error(self, tmp_path):
        with pytest.raises(UsageError, match="does not exist"), opened(tmp_path / "none"):
            pass

        class Failing:
            def read(self, size):
                raise OSError(5, "Input/output error")

        with pytest.raises(UsageError, match="Input/output error"):
            HashedLines(tmp_path / "file", Failing()).sha256()


class TestReadable:
    def test_a_file_is_itself(self, tmp_path, store):
        (tmp_path / "file").write_bytes(ROWS)
        (tmp_path / "link").symlink_to(tmp_path / "file")
        for name in ("file", "link", "none", "n" * 300, "a\0b"):
            with readable(tmp_path / name, store) as same:
                assert same == tmp_path / name
        assert not store.exists()

    def test_a_pipe_is_copied_and_the_copy_is_gone_afterwards(self, fifo, store):
        content = ROWS * 100_000  # more than a pipe holds
        write_later(fifo, content)
        told = []
        with readable(fifo, store, lambda message, fraction: told.append(message)) as copy:
            assert copy.read_bytes() == content and copy.is_relative_to(store)
        assert list(store.iterdir()) == [] and told and told[0].startswith("Reading rows.fifo: ")

    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/full"])
    def test_a_device_may_have_no_end(self, store, device):
        if not os.path.exists(device):
            pytest.skip("not here")
        with pytest.raises(UsageError, match=f"{device} is a device, which may have no end"), readable(Path(device), store):
            pass
        assert not store.exists()

    def test_the_null_device_is_empty(self, store):
        with readable(Path(os.devnull), store) as copy:
            assert copy.read_bytes() == b""
        assert list(store.iterdir()) == []

    @pytest.mark.parametrize("via", ["itself", "a link", "a link in another folder"])
    def test_a_redirected_file_is_one_of_this_process_alone(self, tmp_path, store, via):
        """/dev/fd/N is another file in the child that reads it next, however it was spelt."""
        (tmp_path / "file").write_bytes(ROWS)
        with (tmp_path / "file").open("rb") as file:
            name = Path(f"/dev/fd/{file.fileno()}")
            if via == "a link":
                (tmp_path / "link").symlink_to(name)
                name = tmp_path / "link"
            elif via == "a link in another folder":
                (tmp_path / "folder").symlink_to("/dev/fd")
                name = tmp_path / "folder" / str(file.fileno())
            with readable(name, store) as copy:
                assert copy != name and copy.read_bytes() == ROWS

    def test_cancelling_before_anybody_writes(self, fifo, store):
        calls = []

        def on_progress(message, fraction):
            calls.append(time.monotonic())
            if len(calls) == 3:
                raise InterruptedError

        with pytest.raises(InterruptedError), readable(fifo, store, on_progress):
            pass
        assert list(store.iterdir()) == []
        os.close(os.open(fifo, os.O_WRONLY))  # lets the thread that waits for a writer end

    def test_cancelling_while_somebody_writes_ends_the_copying(self, fifo, store):
        """Otherwise a window would go on copying what may have no end."""
        broken = threading.Event()

        def write_for_ever():
            try:
                with fifo.open("wb") as pipe:
                    while True:
                        pipe.write(ROWS * 1000)
            except BrokenPipeError:
                broken.set()

        threading.Thread(target=write_for_ever, daemon=True).start()

        def on_progress(message, fraction):
            if not message.startswith("Reading rows.fifo: 0.0"):
                raise InterruptedError

        with pytest.raises(InterruptedError), readable(fifo, store, on_progress):
            pass
        assert broken.wait(30) and list(store.iterdir()) == []

    def test_a_store_that_cannot_be_written(self, fifo, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(MespError, match=r"can be read once only.*MESP_CACHE_DIR"), readable(fifo, tmp_path / "file"):
            pass


class TestTokenising:
    def test_what_comes_from_a_pipe_is_what_a_file_gives(self, fifo, plain_model, write, cache, no_child):
        options = {"seq_len": 8, "loss_on": "all"}
        write_later(fifo, ROWS)
        piped = tokenise(fifo, plain_model, **options)
        no_child()
        filed = tokenise(write(ROWS), plain_model, **options)  # found under the same name
        assert piped.path == filed.path
        assert [path for path in (cache / "tokens").iterdir() if path.name.startswith(".")] == []

    def test_errors_name_the_pipe_and_not_its_copy(self, fifo, plain_model, cache):
        write_later(fifo, ROWS + b"{broken\n")
        with pytest.raises(MespError) as raised:
            tokenise(fifo, plain_model, seq_len=8, loss_on="all")
        assert str(raised.value).startswith(f"{fifo}, line 3:") and ".stream-" not in str(raised.value)
        assert list((cache / "tokens").iterdir()) == []
