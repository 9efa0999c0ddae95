from pathlib import Path

import platformdirs

from mesp_core.files.cache import cache_dir


def test_environment_variable_replaces_the_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cache_dir() == tmp_path / "elsewhere"


def test_without_it_the_users_cache_folder(monkeypatch):
    expected = Path(platformdirs.user_cache_dir("mesp", appauthor=False))
    monkeypatch.delenv("MESP_CACHE_DIR", raising=False)
    assert cache_dir() == expected
    monkeypatch.setenv("MESP_CACHE_DIR", "")
    assert cache_dir() == expected
