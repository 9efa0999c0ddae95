"""A folder is replaced whole, whatever dies in between."""

import os

import pytest

from mesp_core.adapters.folder import WEIGHTS_FILE, clean_up, previous, replacing


def write(folder, text):
    with replacing(folder) as temporary:
        (temporary / WEIGHTS_FILE).write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_written_and_replaced(tmp_path):
    folder = tmp_path / "deep" / "adapter"
    for text in ("old", "new"):
        write(folder, text)
        assert (folder / WEIGHTS_FILE).read_text() == text
        assert names(folder.parent) == ["adapter"]


def test_a_block_that_fails_leaves_the_old_one(tmp_path):
    write(tmp_path / "adapter", "old")
    with pytest.raises(KeyError), replacing(tmp_path / "adapter") as temporary:
        (temporary / WEIGHTS_FILE).write_text("half")
        raise KeyError
    assert names(tmp_path) == ["adapter"] and (tmp_path / "adapter" / WEIGHTS_FILE).read_text() == "old"


@pytest.mark.parametrize("renames", [0, 1])
def test_killed_between_the_renames(renames, tmp_path):
    """What a writer that is killed leaves is cleaned up, and the folder is never lost."""
    folder = tmp_path / "adapter"
    write(folder, "old")
    kill_while_writing(folder, renames)
    assert len(names(tmp_path)) == 2  # the old content under one of two names, and the half-written new one
    assert folder.exists() == (renames == 0) and previous(folder).exists() == (renames == 1)
    clean_up(folder)
    assert names(tmp_path) == ["adapter"] and (folder / WEIGHTS_FILE).read_text() == "old"


def test_folders_beside_each_other_are_not_taken_for_one_another(tmp_path):
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    write(alpha, "alpha")
    kill_while_writing(alpha, 1)
    write(beta, "beta")
    clean_up(beta)
    clean_up(alpha)
    assert (alpha / WEIGHTS_FILE).read_text() == "alpha" and (beta / WEIGHTS_FILE).read_text() == "beta"
    assert names(tmp_path) == ["alpha", "beta"]


def kill_while_writing(folder, renames):
    if os.fork() == 0:  # a process of its own that ends without any clean-up, as under SIGKILL
        replace, done = os.replace, []

        def dying_replace(source, target):
            if len(done) == renames:
                os._exit(0)
            done.append(target)
            replace(source, target)

        os.replace = dying_replace
        write(folder, "new")
        os._exit(1)
    _, status = os.wait()
    assert status == 0


# What somebody else put there


def test_a_persons_files_survive_every_save(tmp_path):
    folder = tmp_path / "adapter"
    write(folder, "first")
    (folder / "notes.txt").write_text("mine")
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("mine too")
    for text in ("second", "third"):
        write(folder, text)
        assert names(folder) == [WEIGHTS_FILE, "notes.txt", "sub"]
        assert (folder / WEIGHTS_FILE).read_text() == text
        assert (folder / "notes.txt").read_text() == "mine" and (folder / "sub" / "file").read_text() == "mine too"
        assert names(tmp_path) == ["adapter"]


@pytest.mark.parametrize("renames", [0, 1])
def test_they_survive_a_writer_that_is_killed(renames, tmp_path):
    folder = tmp_path / "adapter"
    write(folder, "old")
    (folder / "notes.txt").write_text("mine")
    kill_while_writing(folder, renames)
    [half] = tmp_path.glob(".adapter-new-*")
    (half / "found.txt").write_text("put where the adapter was about to be")
    clean_up(folder)
    assert (folder / "notes.txt").read_text() == "mine" and (folder / WEIGHTS_FILE).read_text() == "old"
    assert names(half) == ["found.txt"]


def test_two_of_one_name_are_both_kept(tmp_path):
    folder = tmp_path / "adapter"
    write(folder, "new")
    previous(folder).mkdir()
    for place, text in ((folder, "in the new"), (previous(folder), "in the old")):
        (place / "notes.txt").write_text(text)
    (previous(folder) / WEIGHTS_FILE).write_text("old")
    clean_up(folder)
    assert names(tmp_path) == ["adapter"]
    assert (folder / WEIGHTS_FILE).read_text() == "new"
    assert (folder / "notes.txt").read_text() == "in the new" and (folder / "notes.txt~").read_text() == "in the old"


def test_a_file_of_its_name_is_no_adapters_folder(tmp_path):
    (tmp_path / "adapter").write_text("mine")
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "adapter", "new")
    assert names(tmp_path) == ["adapter"] and (tmp_path / "adapter").read_text() == "mine"


def test_a_link_to_a_folder_elsewhere_is_not_replaced(tmp_path):
    """What it points to is not the run's, whatever it holds."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run" / "adapter"
    write(elsewhere, "theirs")
    (elsewhere / "notes.txt").write_text("theirs")
    folder.parent.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        write(folder, "new")
    assert folder.is_symlink() and names(folder.parent) == ["adapter"]
    assert names(elsewhere) == [WEIGHTS_FILE, "notes.txt"] and (elsewhere / WEIGHTS_FILE).read_text() == "theirs"
