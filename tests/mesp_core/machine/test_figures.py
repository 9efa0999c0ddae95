"""Measured figures are kept, and read again only where they hold."""

import dataclasses
import json

import pytest

from mesp_core.machine import figures
from mesp_core.machine.figures import Shapes, cached, keep
from mesp_core.machine.recorded import recorded

SHAPES = Shapes(256, 768, 4, 64, "float32", 128)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured():
    """What the child of bench/machine_figures.py replies."""
    values = dataclasses.asdict(recorded("cpu2", "float32"))
    return {name: value for name, value in values.items() if name not in ("name", "source", "measured")}


def test_what_is_kept_is_read_again(measured):
    assert cached(SHAPES) is None
    kept = keep(SHAPES, measured)
    assert cached(SHAPES) == kept
    assert kept.measured and kept.products == measured["products"] and str(kept).endswith(", measured")


@pytest.mark.parametrize("change", [{"hidden": 512}, {"bits": 8}, {"dtype": "bfloat16"}, {"tokens": 64}, {"group_size": 32}])
def test_another_model_has_its_own(change, measured):
    keep(SHAPES, measured)
    assert cached(dataclasses.replace(SHAPES, **change)) is None


@pytest.mark.parametrize("what", ["mlx", "chip", "cores", "blas"])
def test_another_machine_or_mlx_has_its_own(what, measured, monkeypatch):
    keep(SHAPES, measured)
    changes = {
        "mlx": ("metadata.version", lambda name: "9.9"),
        "chip": ("_chip", lambda: "another chip"),
        "cores": ("os.cpu_count", lambda: 1024),
        "blas": ("find_openblas", lambda: "/another/libblas.so"),
    }
    target, value = changes[what]
    monkeypatch.setattr(f"mesp_core.machine.figures.{target}", value)
    assert cached(SHAPES) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": 1, "figures": 2}'])
def test_a_damaged_file_is_none(text, measured, empty_cache):
    keep(SHAPES, measured)
    [file] = (empty_cache / "machine").iterdir()
    file.write_text(text)
    assert cached(SHAPES) is None


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "fast", None])
def test_what_is_no_figure_is_neither_kept_nor_read(value, measured, empty_cache):
    with pytest.raises((TypeError, ValueError)):
        keep(SHAPES, measured | {"products": value})
    assert not list(empty_cache.iterdir())
    keep(SHAPES, measured)
    [file] = (empty_cache / "machine").iterdir()
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"figures": content["figures"] | {"products": value}}))
    assert cached(SHAPES) is None


@pytest.mark.parametrize("tokens, rounded", {1: 32, 32: 32, 60: 64, 100: 128, 256: 256, 300: 256, 100_000: 256}.items())
def test_tokens_are_rounded(tokens, rounded):
    assert figures.Shapes.rounded(tokens) == rounded
