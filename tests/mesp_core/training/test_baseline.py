import mlx.core as mx
import pytest

from mesp_core.machine.footprint import Footprint
from mesp_core.machine.memory import MB
from mesp_core.methods.registry import METHODS
from mesp_core.training import baseline


@pytest.fixture(autouse=True)
def cache_limit_as_before():
    before = mx.set_cache_limit(0)
    mx.set_cache_limit(before)
    yield
    mx.set_cache_limit(before)


def test_the_footprint_is_read_when_the_device_has_computed_and_holds_nothing_of_it(monkeypatch):
    held = mx.get_active_memory()
    seen = []

    def read(pid):
        seen.append((mx.get_peak_memory() - held, mx.get_active_memory() - held, mx.get_cache_memory()))
        return Footprint(3 * MB, None, 0)

    monkeypatch.setattr(baseline, "read_footprint", read)
    mx.reset_peak_memory()
    assert baseline.baseline_mb([METHODS["mesp"]]) == 3
    [(computed, kept, cached)] = seen
    assert computed > 0 and kept == 0 and cached == 0


def test_what_a_method_imports_is_in_it(monkeypatch):
    order = []

    class Kind:
        def load(self):
            order.append("loaded")

    class Method:
        kind = Kind()

    monkeypatch.setattr(baseline, "read_footprint", lambda pid: order.append("read") or Footprint(0, None, 0))
    baseline.baseline_mb([Method(), Method()])
    assert order == ["loaded", "loaded", "read"]
