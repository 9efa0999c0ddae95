"""When an adapter is written, where it goes when that fails, and what is said about it."""

import errno
import os
import shutil
import tempfile
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mesp_core.adapters.adapter import load_adapter
from mesp_core.errors import MespError
from mesp_core.settings.run_config import RunConfig
from mesp_core.training import saving
from mesp_core.training.saving import AdapterSaver

PATH = "model.layers.0.mlp.up_proj"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A saver to tmp_path/out/mesp/adapter, what it logged and what it told of; TMPDIR and the cache are the test's."""
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    adapters = {PATH: {"lora_a": mx.ones((4, 2)), "lora_b": mx.zeros((2, 4))}}
    logged, saved = [], []

    def make(**changes):
        config = RunConfig(rank=2, **{"save_every": 3} | changes)
        folder = tmp_path / "out" / "mesp" / "adapter"
        saver = AdapterSaver(
            folder, adapters, config, 1, lambda *said: logged.append(said), lambda *said: saved.append(said)
        )
        return SimpleNamespace(saver=saver, folder=folder, adapters=adapters, logged=logged, saved=saved)

    return make


def value(folder):
    return load_adapter(folder)[0][PATH]["lora_a"][0, 0].item()


def become_file(folder):
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.write_text("a file")


def test_it_is_written_when_it_is_due_and_once(made):
    run = made()
    for step in (1, 2, 3, 3, 4, 5, 6):
        run.saver.save_if_due(step)
    run.saver.save(6)
    run.saver.save(7)
    assert run.saved == [(3, run.folder), (6, run.folder), (7, run.folder)] and run.saver.saved == 7 and not run.logged


def test_zero_means_only_at_the_end(made):
    run = made(save_every=0)
    run.saver.save_if_due(100)
    run.saver.save(0)
    assert run.saved == [] and not run.folder.exists()


def test_one_in_between_that_fails_is_told_and_tried_again(made):
    run = made()
    become_file(run.folder)
    run.saver.save_if_due(3)
    [(level, message)] = run.logged
    assert level == "warning" and str(run.folder) in message and "The run goes on" in message
    assert run.saved == [] and run.saver.saved == 0
    run.folder.parent.unlink()
    run.saver.save_if_due(6)
    assert run.saved == [(6, run.folder)] and value(run.folder) == 1


def test_the_last_one_is_rescued_and_where_is_named(made, tmp_path):
    run = made()
    become_file(run.folder)
    with pytest.raises(MespError) as raised:
        run.saver.save(5)
    [(step, rescued)] = run.saved
    assert step == 5 and rescued.is_relative_to(tmp_path / "cache" / "rescued") and str(rescued) in str(raised.value)
    assert value(rescued) == 1 and run.folder.parent.read_text() == "a file"


def test_two_processes_in_one_second_are_rescued_apart(made, tmp_path, monkeypatch):
    monkeypatch.setattr(saving.time, "strftime", lambda form: "now")
    run = made()
    become_file(run.folder)
    with pytest.raises(MespError):
        run.saver.save(5)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(MespError):
        made().saver.save(5)
    assert len({folder for _, folder in run.saved}) == 2


def test_where_the_cache_is_full_too_the_systems_temporary_folder_is_tried(made, tmp_path):
    run = made()
    become_file(run.folder)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(MespError, match="It was saved in"):
        run.saver.save(5)
    assert run.saved[0][1].is_relative_to(tmp_path / "temp")


def test_where_nothing_can_be_written_that_is_said_of_its_own_place(made, tmp_path):
    run = made()
    become_file(run.folder)
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "temp").rmdir()
    (tmp_path / "temp").write_text("a file")
    with pytest.raises(MespError, match="adapter cannot be written") as raised:
        run.saver.save(5)
    assert str(run.folder) in str(raised.value) and "instead" not in str(raised.value) and run.saved == []


def test_after_another_failure_it_only_logs(made):
    run = made()
    become_file(run.folder)
    run.saver.save_after_failure(5)
    assert [level for level, _ in run.logged] == ["warning"] and len(run.saved) == 1
    assert str(run.saved[0][1]) in run.logged[0][1]


class TestTryingThePlace:
    def test_one_that_is_good_is_left_as_it_is(self, made):
        run = made()
        run.saver.try_place()
        assert list(run.folder.parent.iterdir()) == []

    def test_a_file_in_its_way(self, made):
        run = made()
        become_file(run.folder)
        with pytest.raises(MespError, match="adapter cannot be written"):
            run.saver.try_place()
        run.folder.parent.unlink()
        run.folder.parent.mkdir()
        run.folder.write_text("a file")
        with pytest.raises(MespError, match="there is a file of that name"):
            run.saver.try_place()

    def test_a_disk_that_is_too_full(self, made, monkeypatch):
        run = made()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=63))
        with pytest.raises(MespError, match=r"will need 0\.0 MB and 0\.0 MB are free.*--out"):
            run.saver.try_place()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64))
        run.saver.try_place()

    def test_a_place_that_cannot_be_written(self, made, monkeypatch):
        def refuse(*arguments, **options):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
        with pytest.raises(MespError, match=os.strerror(errno.EROFS)):
            made().saver.try_place()
