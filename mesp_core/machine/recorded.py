"""Machines that are not at hand, from recorded_machines.json: published figures and estimates, each with its source.

Of a GPU the file holds what is published, its TFLOPS and its memory's bandwidth; what a MachineModel needs follows from
these. Of a CPU it holds what was measured.
"""

import json
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.machine.device import chip_name
from mesp_core.machine.model import MachineModel

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
ARRAYS = 3  # an elementwise kernel reads two and writes one
FLOAT_ARRAYS = 2  # a softmax or an exponential reads one and writes one
CPU, MAC = "cpu2", "m4"  # what is nearest where nothing else is known


def names() -> list[str]:
    """What a recorded machine may be asked for by."""
    return list(recorded_figures()["machines"])


def recorded(name: str, dtype: str) -> MachineModel:
    """A machine's figures, for activations in `dtype`.

    Raises:
        UsageError: for an unknown name, with the known ones.
    """
    entry = _entry(name)
    if not has_gpu(name):
        source = "recorded, measured on such a machine"
        return MachineModel(entry["name"], source, False, False, **entry["measured"][dtype])
    return _gpu(entry, recorded_figures()["gpus"], dtype)


def has_gpu(name: str) -> bool:
    """Whether MLX computes on a GPU there. Raises UsageError for an unknown name, with the known ones."""
    return "tflops" in _entry(name)


def _entry(name: str) -> dict[str, Any]:
    machines = recorded_figures()["machines"]
    if name not in machines:
        raise UsageError(f"machine: {name!r} is not recorded; there are {', '.join(machines)}.")
    return machines[name]


def nearest(dtype: str) -> MachineModel:
    """The recorded machine that is most like this one: of this chip, or its generation, or its kind."""
    return recorded(nearest_name(), dtype)


def nearest_name(chip: str | None = None) -> str:
    """As `nearest`; `chip` is its name as the system says it, if not this machine's."""
    if chip is None:
        if (sys.platform, platform.machine()) != ("darwin", "arm64"):
            return CPU
        chip = chip_name()
    found = re.search(r"\b([AM]\d+)\b *(Pro|Max|Ultra)?", chip)
    if found is None:
        return MAC
    family, rank = found[1].lower(), (found[2] or "").lower()
    known = names()
    for name in (family + rank, f"{family}max" if rank == "ultra" else family, family):
        if name in known:
            return name
    # A later generation than any here is most like the last one.
    return next((name for name in (f"m4{rank}", MAC) if name in known), MAC)


@cache
def recorded_figures() -> dict[str, Any]:
    """The whole data file: `sources` by name, what `gpus` have in common, `machines` by name."""
    return json.loads((Path(__file__).parent / "recorded_machines.json").read_text("utf-8"))


def _gpu(entry: dict[str, Any], gpus: dict[str, Any], dtype: str) -> MachineModel:
    common = {name: figure["value"] for name, figure in gpus.items()}
    multiply_adds, bandwidth = entry["tflops"]["value"] * 1e12 / 2, entry["bandwidth_gb_s"]["value"] * 1e9
    own = multiply_adds * (entry["bfloat16"]["value"] if dtype == "bfloat16" else 1.0)
    floats = bandwidth / (4 * FLOAT_ARRAYS)
    return MachineModel(
        name=entry["name"],
        source="recorded: published figures and estimates",
        gpu=True,
        measured=False,
        wait_s=common["wait_s"],
        submit_s=common["submit_s"],
        launch_s=common["launch_s"],
        quantized_forward=common["quantized_forward"] * own,
        quantized_backward=common["quantized_backward"] * own,
        products=common["products"] * multiply_adds,
        narrow_products=common["products"] * multiply_adds,
        own_products=common["products"] * own,
        thin_products=common["thin_operations_a_byte"] / 2 * bandwidth * 4 / ITEM[dtype],
        thin_float_products=common["thin_operations_a_byte"] / 2 * bandwidth,
        dequantized=bandwidth / 5,  # four bits read, and their scales; a float32 written
        exponentials=floats,
        softmaxes=floats,
        elements=bandwidth / (ARRAYS * ITEM[dtype]),
        file_bytes=max(common["file_least_gb_s"] * 1e9, common["file_share"] * bandwidth),
        disk_bytes=entry["disk_gb_s"]["value"] * 1e9,
    )
