"""Every method is one record, and nobody else knows it by its name."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mesp_core.engine.shape import BlockShape
from mesp_core.lifetimes.keep import Keep
from mesp_core.methods.names import MethodSpec, parse_method, parse_methods
from mesp_core.methods.record import Kind, Record, WholeModel
from mesp_core.methods.registry import CHECKED, COMPARED, METHODS, PLANNED
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.planner.plans import sizes_of
from mesp_core.planner.steps import Step
from mesp_core.settings.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[3]
BLOCKWISE = [name for name, record in METHODS.items() if record.kind.blockwise]


@pytest.mark.parametrize("name", METHODS)
def test_a_record_is_whole(name):
    record = METHODS[name]
    assert record.name == name and isinstance(record, Record) and isinstance(record.kind, Kind)
    assert len(record.description) > 20 and not record.description.endswith(".")
    assert record.overhead_mb > 0
    for variant in record.variants:
        assert parse_method(f"{name}:{variant}").record is record


def test_each_has_a_colour_of_its_own():
    from app.widgets import theme

    colors = [record.color for record in METHODS.values()]
    assert sorted(colors) == list(range(len(METHODS))) and len(theme._METHODS) >= len(METHODS)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_its_passes_are_there_when_asked_for(name, tiny_copy):
    record = METHODS[name]
    record.kind.load()
    passes = record.kind.passes(BlockShape.of(open_checkpoint(tiny_copy).architecture), Keep(2))
    assert callable(passes.forward) and callable(passes.backward) and passes.lazy == record.kind.keeps


def test_lists_of_methods_are_methods():
    assert [spec.key for spec in parse_methods(",".join(PLANNED))] == list(PLANNED)
    assert set(COMPARED) <= set(METHODS)
    assert set(CHECKED) == {name for name in METHODS if not isinstance(METHODS[name].kind, WholeModel)}


def test_a_kind_that_the_planner_does_not_know_is_not_planned_as_another(monkeypatch, tiny_copy):
    @dataclass(frozen=True)
    class Other:
        blockwise = True
        keeps = False

    strange = replace(METHODS["mesp"], name="strange", kind=Other())
    monkeypatch.setitem(METHODS, "strange", strange)
    config = RunConfig(method="strange")
    step = Step(config, MethodSpec("strange", "strange", {}), sizes_of(config, open_checkpoint(tiny_copy)))
    with pytest.raises(TypeError, match="strange: nothing is known of the memory of Other"):
        step.phases(None, "memory")


def names_compared(file):
    """Strings of method names that the file compares something with, or looks for at the start of something."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        found = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            found = node.args
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        for part in found:
            for constant in ast.walk(part):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant.value.partition(":")[0], node.lineno


def test_nobody_asks_a_method_for_its_name():
    for package in ("mesp_core", "app"):
        for file in (ROOT / package).rglob("*.py"):
            # `"mesp" in …` is also the name of our key in adapter_config.json; no file compares it with a method's.
            asked = [(name, line) for name, line in names_compared(file) if name in METHODS]
            assert not asked, f"{file.relative_to(ROOT)}: {asked}"
