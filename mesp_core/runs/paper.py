"""The paper's own figures, to stand beside ours where the configuration is one of the paper's."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from mesp_core.models.architecture import PROJECTIONS
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.settings.run_config import RunConfig

# The paper's models by (hidden_size, num_hidden_layers, vocab_size).
GEOMETRIES = {
    (896, 24, 151936): "qwen2.5-0.5b",
    (1536, 28, 151936): "qwen2.5-1.5b",
    (2048, 36, 151936): "qwen2.5-3b",
}


def figures_for(config: RunConfig, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The paper's rows for this configuration: same geometry, length, rank, batch, quantisation, modules and optimizer."""
    architecture = checkpoint.architecture
    key = (architecture.hidden_size, architecture.num_hidden_layers, architecture.vocab_size)
    name = GEOMETRIES.get(key)
    same_setting = (
        config.batch_size == 1
        and config.grad_accumulation == 1
        and config.optimizer == "sgd"
        and config.target_modules == PROJECTIONS
        and (checkpoint.bits, checkpoint.group_size) == (4, 64)
    )
    if name is None or not same_setting:
        return []
    wanted = {"model": name, "seq_len": config.seq_len, "rank": config.rank}
    return [row for row in paper_figures()["figures"] if wanted.items() <= row.items()]


def table_row(figures: dict[str, Any]) -> dict[str, Any]:
    """One of `figures_for`'s rows by the keys of the comparison table (results.COLUMNS).

    The paper's memory is the peak of its process's footprint. `of` is the method, `source` where the figures stand.
    """
    return {
        "method": f"{figures['method']} (paper, iPhone 17 Pro)",
        "of": figures["method"],
        "step_time_s": figures.get("step_time_s"),
        "footprint_peak_mb": figures.get("memory_mb"),
        "source": f"Table {figures['table']} of the MeSP paper (arXiv 2602.13069), measured there on an iPhone 17 Pro.",
    }


@cache
def paper_figures() -> dict[str, Any]:
    """The whole data file: `source` says how the paper measured, `figures` holds the rows, `others` other papers'."""
    return json.loads((Path(__file__).parent / "paper_figures.json").read_text("utf-8"))
