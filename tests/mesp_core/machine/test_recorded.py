"""The machines that are recorded: each figure with its source, in plausible ranges, and which one is nearest."""

import dataclasses

import pytest

from mesp_core.errors import UsageError
from mesp_core.machine import recorded as module
from mesp_core.machine.recorded import has_gpu, names, nearest_name, recorded, recorded_figures

DTYPES = ("float32", "bfloat16", "float16")
# Of a figure: the least and the most that any machine of these kinds has.
PLAUSIBLE = {
    "wait_s": (1e-6, 3e-4),
    "submit_s": (0, 1e-4),
    "launch_s": (1e-7, 2e-5),
    "quantized_forward": (1e7, 2e13),
    "quantized_backward": (1e7, 2e13),
    "products": (1e10, 2e13),
    "narrow_products": (1e10, 2e13),
    "own_products": (1e9, 2e13),
    "thin_products": (1e9, 5e12),
    "thin_float_products": (1e9, 5e12),
    "dequantized": (1e8, 5e11),
    "exponentials": (1e7, 5e11),
    "softmaxes": (1e7, 5e11),
    "elements": (1e8, 5e11),
    "file_bytes": (1e9, 2e11),
    "disk_bytes": (5e8, 2e10),
}


def figures_of(entry):
    return [value for value in entry.values() if isinstance(value, dict) and "value" in value]


@pytest.mark.parametrize("name", names())
def test_every_figure_has_a_source_that_is_written_down(name):
    file = recorded_figures()
    entry = file["machines"][name]
    sources = [figure["source"] for figure in figures_of(entry)] or [entry["source"]]
    sources += [figure["source"] for figure in figures_of(file["gpus"])]
    assert len(sources) > 1 and all(file["sources"][source] for source in sources)


def test_what_is_an_estimate_says_so():
    file = recorded_figures()
    for figure in [*figures_of(file["gpus"]), *(f for entry in file["machines"].values() for f in figures_of(entry))]:
        assert figure.get("estimate", False) or not file["sources"][figure["source"]].startswith("estimated")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", names())
def test_figures_are_plausible(name, dtype):
    machine = recorded(name, dtype)
    assert not machine.measured and machine.source.startswith("recorded") and machine.gpu == has_gpu(name)
    numbers = {f.name for f in dataclasses.fields(machine)} - {"name", "source", "gpu", "measured"}
    assert numbers == set(PLAUSIBLE)
    for figure, (least, most) in PLAUSIBLE.items():
        assert least <= getattr(machine, figure) <= most, figure


def test_chips_that_emulate_bfloat16_are_slower_in_it():
    for name, emulates in {"m1": True, "m2": True, "m4": False, "m4max": False}.items():
        short, half = (recorded(name, dtype).quantized_forward for dtype in ("bfloat16", "float16"))
        assert (short < half) == emulates


def test_an_unknown_one_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"'m0' is not recorded; there are m1, "):
        recorded("m0", "float32")


@pytest.mark.parametrize(
    "chip, name",
    {
        "Apple M1": "m1",
        "Apple M1 Max": "m1max",
        "Apple M1 Ultra": "m1max",
        "Apple M2 Pro": "m2",
        "Apple M4 Pro": "m4pro",
        "Apple A18 Pro": "a18pro",
        "Apple M7 Max": "m4max",
        "Apple M7": "m4",
        "something else": "m4",
    }.items(),
)
def test_the_nearest_one_is_of_the_same_chip_or_generation(chip, name):
    assert nearest_name(chip) == name


def test_without_an_apple_chip_it_is_a_processor(monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "linux")
    assert not has_gpu(nearest_name())
