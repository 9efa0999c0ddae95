"""How fast this machine is: measured once, then known; and what is said where it cannot be measured."""

import pytest

from mesp_core.bench import machine_figures
from mesp_core.bench.machine_figures import ensure
from mesp_core.errors import MespError
from mesp_core.machine.figures import Shapes, cached
from mesp_core.machine.recorded import nearest

SHAPES = Shapes(256, 768, 4, 64, "float32", 64)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path))


def test_it_is_measured_once_and_then_known(monkeypatch):
    said = []
    first = ensure(SHAPES, said.append)
    assert first.measured and len(said) == 1 and "Measuring" in said[0]
    # A product is faster than what is dequantised, and that faster than any exponential of MLX's own.
    assert first.products > first.dequantized > first.softmaxes
    assert 0 <= first.wait_s < 0.01 and 0 < first.launch_s < 0.001

    monkeypatch.setattr(machine_figures, "ask", lambda *arguments, **more: pytest.fail("measured again"))
    assert ensure(SHAPES, said.append) == first
    assert len(said) == 1


@pytest.mark.parametrize("dtype, bits", [("bfloat16", 8), ("float32", None)])
def test_other_models_can_be_measured(dtype, bits):
    assert ensure(Shapes(128, 320, bits, bits and 32, dtype, 32), lambda text: None).measured


@pytest.mark.parametrize("reply", [None, {"products": 1.0}, {"gpu": False, "products": "fast"}])
def test_where_it_fails_recorded_figures_are_taken_and_it_is_said(reply, monkeypatch):
    def ask(*arguments, **more):
        if reply is None:
            raise MespError("no MLX here")
        return reply

    said = []
    monkeypatch.setattr(machine_figures, "ask", ask)
    machine = ensure(SHAPES, said.append)
    assert machine == nearest("float32") and not machine.measured
    assert len(said) == 2 and machine.name in said[1] and cached(SHAPES) is None
    assert reply is not None or "no MLX here" in said[1]
