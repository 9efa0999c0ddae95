"""A folder is replaced whole, whatever dies in between."""

import os

import pytest

from mesp_core.adapter_folder import WEIGHTS_FILE, clean_up, previous, replacing


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
