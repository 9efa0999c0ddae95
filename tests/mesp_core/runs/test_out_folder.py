"""The folder of a run's results: made, claimed, refused, and taken away again."""

import errno
import fcntl
import os
import re
import subprocess
import tempfile

import pytest

from mesp_core.errors import UsageError
from mesp_core.runs.out_folder import RESULTS_FILE, claim_out, default_out


def test_it_is_made_with_its_parents_and_taken_away_with_them(tmp_path):
    out = claim_out(tmp_path / "a" / "b")
    assert out.path.is_dir() and list(out.path.iterdir()) == []
    assert out.made == (tmp_path / "a", tmp_path / "a" / "b")
    out.release()
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_or_is_not_empty_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    claim_out(tmp_path / "mine").release()
    assert (tmp_path / "mine").is_dir()
    out = claim_out(tmp_path / "a" / "b")
    (tmp_path / "a" / "note").write_text("kept")
    out.release()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["note"]


def test_one_with_results_is_refused(tmp_path):
    (tmp_path / RESULTS_FILE).write_text("precious")
    with pytest.raises(UsageError, match="already holds"):
        claim_out(tmp_path)
    assert (tmp_path / RESULTS_FILE).read_text() == "precious"


def test_one_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        with pytest.raises(UsageError, match="cannot be written to"):
            claim_out(out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_whose_name_is_too_long_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="cannot be written to"):
        claim_out(tmp_path / "a" / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_a_new_one_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claimed = [default_out() for _ in range(3)]
    assert len({out.path for out in claimed}) == 3
    assert all(out.path.parent.name == "runs" and out.path.is_dir() for out in claimed)
    for out in reversed(claimed):
        out.release()
    assert list(tmp_path.iterdir()) == []


def test_the_default_below_another_folder(tmp_path):
    first, second = default_out(base=tmp_path / "mine" / "runs"), default_out(base=tmp_path / "mine" / "runs")
    assert first.path.parent == second.path.parent == tmp_path / "mine" / "runs" and first.path != second.path
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        default_out(base=tmp_path / "file")


# What is there already, and who else writes to it


def test_what_is_there_is_named_and_refused(tmp_path):
    for number, (name, said) in enumerate(
        (
            ("mesp/adapter/notes.txt", "mesp, which is not this run's"),
            ("mesp/adapter/adapters.safetensors", "mesp/adapter, the adapter of another run"),
            ("mesp/.adapter-new-dead/adapters.safetensors", "mesp, which is not this run's"),
            ("mebp/adapter/adapters.safetensors", "mebp/adapter, the adapter of another run"),
            ("mesp", "mesp, which is not this run's"),
            ("notes.txt", "notes.txt, which is not this run's"),
            (".hidden", ".hidden, which is not this run's"),
            ("results.json", "already holds the results of a run"),
        )
    ):
        out = tmp_path / str(number)
        file = out / name
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        with pytest.raises(UsageError, match=said):
            claim_out(out, ["mesp"])
        assert file.read_text() == "mine"
        assert [path for path in out.rglob("*") if path.is_file()] == [file]


def test_what_a_killed_run_left_empty_and_what_the_finder_writes_are_no_hindrance(tmp_path):
    (tmp_path / "mesp").mkdir()
    (tmp_path / ".DS_Store").write_text("")
    out = claim_out(tmp_path, ["mesp", "mebp"])
    assert out.made == (tmp_path / "mebp",)
    out.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".DS_Store", "mesp"]
    with pytest.raises(UsageError, match=r"holds mesp, which is not this run's"):
        claim_out(tmp_path, ["mebp"])  # an empty folder that another method's run would not write to


def test_a_name_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not UTF-8 text"):
        claim_out(tmp_path / "caf\udce9", ["mesp"])
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time(tmp_path):
    first = claim_out(tmp_path / "out", ["mesp"])
    with pytest.raises(UsageError, match="another run is writing to"):
        claim_out(tmp_path / "out", ["mesp"])
    assert (tmp_path / "out" / "mesp").is_dir()  # the refused one took nothing away
    first.release()
    first.release()
    claim_out(tmp_path / "out", ["mesp"]).release()
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_inherited_the_claim_holds_it(tmp_path):
    out = claim_out(tmp_path / "out", ["mesp"])
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=out.inherited)
    out.claim.close()
    try:
        with pytest.raises(UsageError, match="another run"):
            claim_out(tmp_path / "out", ["mesp"])
    finally:
        child.communicate()
    claim_out(tmp_path / "out", ["mesp"]).release()


def test_a_file_system_that_locks_no_folders_is_no_hindrance(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    claim_out(tmp_path / "out", ["mesp"]).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_found_out(tmp_path, monkeypatch, code):
    """Whoever runs the tests may be allowed everything, so the system's answer is made up."""

    def refuse(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(UsageError, match=re.escape(f"cannot be written to ({os.strerror(code)})")):
        claim_out(tmp_path / "a" / "out", ["mesp"])
    assert list(tmp_path.iterdir()) == []
