"""An adapter is copied whole or not at all, and never over something else."""

import shutil
import subprocess
import sys

import pytest

from mesp_core.adapters.export import export_adapter
from mesp_core.errors import MespError, UsageError

NAMES = ["adapter_config.json", "adapters.safetensors"]


@pytest.fixture
def make(tmp_path):
    """make(name, text) -> an adapter folder whose files hold that text."""

    def adapter(name, text):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file in NAMES:
            (folder / file).write_text(f"{file} {text}")
        return folder

    return adapter


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_to_a_new_place(make, tmp_path):
    source = make("runs/mesp/adapter", "new")
    export_adapter(source, tmp_path / "deep" / "mine")
    assert content(tmp_path / "deep" / "mine") == content(source)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["mine"]


def test_only_what_is_the_adapters(make, tmp_path):
    source = make("adapter", "new")
    (source / ".half-written").write_text("")
    export_adapter(source, tmp_path / "mine")
    assert sorted(content(tmp_path / "mine")) == NAMES


def test_over_an_empty_folder_and_over_another_adapter(make, tmp_path):
    source, target = make("adapter", "new"), tmp_path / "mine"
    target.mkdir()
    export_adapter(source, target)
    assert content(target) == content(source)
    other = make("second", "newer")
    (target / ".DS_Store").write_text("written by the Finder")
    export_adapter(other, target)
    assert content(target) == content(other) | {".DS_Store": "written by the Finder"}


def test_through_a_link(make, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    export_adapter(make("adapter", "new"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and sorted(content(tmp_path / "real")) == NAMES


def test_anything_else_is_refused_and_stays(make, tmp_path):
    source = make("adapter", "new")
    file, folder, model = tmp_path / "file", tmp_path / "folder", make("beside", "old")
    file.write_text("precious")
    folder.mkdir()
    (folder / "letter").write_text("precious")
    (model / "thesis.tex").write_text("precious")
    for target, says in ((file, "is a file"), (folder, "something else than an adapter"), (model, r"thesis\.tex beside")):
        with pytest.raises(UsageError, match=says):
            export_adapter(source, target)
    assert file.read_text() == "precious" and content(folder) == {"letter": "precious"}
    assert content(model)["thesis.tex"] == "precious" and len(content(model)) == 3


@pytest.mark.parametrize("target", ["adapter", "adapter/inside", "other/../adapter"])
def test_onto_itself_is_refused(make, tmp_path, target):
    source = make("adapter", "new")
    before = content(source)
    with pytest.raises(UsageError, match="is the adapter that is exported"):
        export_adapter(source, tmp_path / target)
    assert content(source) == before


@pytest.mark.parametrize("lacking", NAMES)
def test_a_source_without_an_adapter_is_refused(make, tmp_path, lacking):
    source = make("adapter", "new")
    (source / lacking).unlink()
    with pytest.raises(UsageError, match=f"holds no {lacking}"):
        export_adapter(source, tmp_path / "mine")
    shutil.rmtree(source)
    with pytest.raises(UsageError, match="holds no adapter_config"):
        export_adapter(source, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_copy_that_fails_leaves_the_old_one(make, tmp_path, monkeypatch):
    source, target = make("adapter", "new"), make("mine", "old")
    before = content(target)
    copyfile = shutil.copyfile

    def full(file, copy):
        if file.name == NAMES[1]:
            raise OSError(28, "No space left on device")
        copyfile(file, copy)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(MespError, match="No space left") as caught:
        export_adapter(source, target)
    assert not isinstance(caught.value, UsageError)
    assert content(target) == before and sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "mine"]


def test_below_a_file(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MespError, match="cannot be written"):
        export_adapter(make("adapter", "new"), tmp_path / "file" / "mine")


def test_it_loads_no_mlx():
    code = "import sys, mesp_core.adapters.export; sys.exit('mlx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
