"""Exact, low-memory LoRA fine-tuning: everything but the window. Importing this package loads neither MLX nor Qt.

What other programs build on stands here by name and is loaded when it is first asked for; README.md shows two ways to use
it, and mesp_core/README.md how the rooms behind it lie.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Of each name, the module that it comes from.
_OFFERED = {
    "MespError": "mesp_core.errors",
    # What may be asked for, and what was found
    "RunConfig": "mesp_core.settings.run_config",
    "preset": "mesp_core.settings.run_config",
    "METHODS": "mesp_core.methods.registry",
    "Prepared": "mesp_core.runs.prepare",
    "prepare": "mesp_core.runs.prepare",
    # Memory foretold
    "Plan": "mesp_core.planner",
    "plan": "mesp_core.planner",
    # Whole runs, each method in a process of its own
    "compare": "mesp_core.runs.comparison",
    "Comparison": "mesp_core.runs.comparison",
    "Results": "mesp_core.runs.results",
    # A loop of one's own
    "batches": "mesp_core.data.batches",
    "build_method": "mesp_core.training.build",
    "make_optimizer": "mesp_core.training.train",
    "train": "mesp_core.training.train",
    # What was learnt
    "initial_adapters": "mesp_core.adapters.adapter",
    "load_adapter": "mesp_core.adapters.adapter",
    "save_adapter": "mesp_core.adapters.adapter",
    "export_adapter": "mesp_core.adapters.export",
}

__all__ = ["__version__", *_OFFERED]


def __getattr__(name: str) -> Any:
    """The offered object of that name. Raises AttributeError for any other."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
