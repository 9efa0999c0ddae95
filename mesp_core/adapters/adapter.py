"""Adapters: their initial values, and saving and loading them in mlx-lm's layout.

A folder holds `adapters.safetensors` (module path + .lora_a (in × r) / .lora_b (r × out)) and `adapter_config.json`.
"""

import json
import math
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np

from mesp_core.adapters.folder import CONFIG_FILE, WEIGHTS_FILE, replacing
from mesp_core.engine.method import AdapterTree
from mesp_core.errors import MespError, UsageError
from mesp_core.models.architecture import Architecture, projection_path
from mesp_core.settings.run_config import RunConfig


def initial_adapters(architecture: Architecture, config: RunConfig, b_scale: float = 0.0) -> AdapterTree:
    """A uniform in ±1/√in as in mlx-lm, B zero, in `config.adapter_dtype`; the same for every method and device.

    Each tensor has a generator of its own, seeded by the run's seed and its path. `b_scale` > 0 makes B normal with
    that standard deviation, so that a gradient check carries signal through every path.
    """
    dtype = getattr(mx, config.adapter_dtype)
    tree: AdapterTree = {}
    for layer in range(architecture.num_hidden_layers):
        for name in config.target_modules:
            out_features, in_features = architecture.projection_shape(name)
            path = projection_path(layer, name)
            rng = np.random.default_rng([config.seed, zlib.crc32(path.encode())])
            bound = 1 / math.sqrt(in_features)
            a = rng.uniform(-bound, bound, (in_features, config.rank)).astype(np.float32)
            b = np.zeros((config.rank, out_features), np.float32)
            if b_scale:
                b = (b_scale * rng.standard_normal(b.shape)).astype(np.float32)
            tree[path] = {"lora_a": mx.array(a).astype(dtype), "lora_b": mx.array(b).astype(dtype)}
            # Now: float32 arrays of all of them, freed between what stays, would leave holes of their size in the heap.
            mx.eval(tree[path])
    return tree


def save_adapter(folder: Path, adapters: AdapterTree, config: RunConfig, num_layers: int, step: int) -> None:
    """Write an adapter so that the folder holds a whole one at any moment: the old one until the new one is complete.

    Raises:
        MespError: if it cannot be written.
    """
    keys = sorted({path.split(".", 3)[3] for path in adapters})
    description = {
        "fine_tune_type": "lora",
        "num_layers": num_layers,
        "lora_parameters": {"rank": config.rank, "scale": config.scale, "dropout": 0.0, "keys": keys},
        "model": config.model,
        "mesp": {"method": config.method, "step": step, "config": config.to_dict()},
    }
    try:
        with replacing(folder) as temporary:
            flat = {f"{path}.{part}": array for path, pair in adapters.items() for part, array in pair.items()}
            mx.save_safetensors(str(temporary / WEIGHTS_FILE), flat, {"format": "mlx"})
            (temporary / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
    except (OSError, RuntimeError, ValueError) as error:
        raise MespError(f"{folder}: the adapter cannot be written ({getattr(error, 'strerror', None) or error}).") from error


def load_adapter(folder: Path) -> tuple[AdapterTree, float]:
    """An adapter in mlx-lm's layout -> (its tensors by module path, its scale).

    Raises:
        UsageError: if the folder holds none, or one that is not whole.
    """
    try:
        parameters = json.loads((folder / CONFIG_FILE).read_text("utf-8"))["lora_parameters"]
        scale = float(parameters["scale"])
        flat = mx.load(str(folder / WEIGHTS_FILE))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"{folder}: no whole adapter here; expected {WEIGHTS_FILE} and {CONFIG_FILE} as mlx-lm writes them."
        ) from error
    tree: AdapterTree = {}
    for name, array in flat.items():
        path, _, part = name.rpartition(".")
        tree.setdefault(path, {})[part] = array
    if not tree or "" in tree or any(set(pair) != {"lora_a", "lora_b"} for pair in tree.values()):
        raise UsageError(f"{folder / WEIGHTS_FILE}: not a LoRA adapter; every module needs a lora_a and a lora_b.")
    return tree, scale
