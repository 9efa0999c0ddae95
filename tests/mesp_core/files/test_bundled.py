import pytest

from mesp_core.errors import MespError
from mesp_core.files import bundled
from mesp_core.files.bundled import bundled_path


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder that holds mesp_core/ and nothing else yet."""
    package = tmp_path / "mesp_core"
    package.mkdir()
    monkeypatch.setattr(bundled, "_PACKAGE", package)
    return tmp_path


def make_wheel_copy(root):
    (root / "mesp_core" / "_bundled" / "tiny").mkdir(parents=True)
    (root / "mesp_core" / "_bundled" / "sample.jsonl").touch()


def make_source_copy(root):
    (root / "assets" / "tiny").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "data" / "sample.jsonl").touch()


def test_in_a_wheel(root):
    make_wheel_copy(root)
    assert bundled_path("tiny") == root / "mesp_core" / "_bundled" / "tiny"
    assert bundled_path("sample") == root / "mesp_core" / "_bundled" / "sample.jsonl"


def test_in_a_source_tree(root):
    make_source_copy(root)
    (root / "pyproject.toml").touch()
    assert bundled_path("tiny") == root / "assets" / "tiny"
    assert bundled_path("sample") == root / "data" / "sample.jsonl"


def test_another_package_s_data_folder_beside_an_installed_one_is_not_taken(root):
    make_source_copy(root)
    with pytest.raises(MespError, match="missing"):
        bundled_path("sample")


@pytest.mark.parametrize("name", ["tiny", "sample"])
@pytest.mark.parametrize("source_tree", [True, False])
def test_a_missing_one_is_named_with_the_places_looked_at(root, name, source_tree):
    if source_tree:
        (root / "pyproject.toml").touch()
    with pytest.raises(MespError) as error:
        bundled_path(name)
    assert f"'{name}'" in str(error.value)
    assert str(root / "mesp_core" / "_bundled") in str(error.value)
    assert error.value.exit_code == 1


def test_a_file_where_the_folder_should_be_does_not_count(root):
    (root / "mesp_core" / "_bundled").mkdir()
    (root / "mesp_core" / "_bundled" / "tiny").touch()
    with pytest.raises(MespError):
        bundled_path("tiny")


@pytest.mark.parametrize(("name", "inside"), [("tiny", "config.json"), ("sample", "")])
def test_the_real_ones(name, inside):
    try:
        path = bundled_path(name)
    except MespError:
        pytest.skip(f"the bundled {name} has not been made")
    assert (path / inside).is_file()
