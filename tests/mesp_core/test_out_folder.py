"""The folder of a run's results: made, claimed, refused, and taken away again."""

import pytest

from mesp_core.errors import UsageError
from mesp_core.out_folder import RESULTS_FILE, claim_out, default_out


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
