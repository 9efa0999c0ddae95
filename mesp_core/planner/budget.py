"""The fastest way for lean to stay within a budget."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mesp_core.lifetimes.keep import ATTENTION, GATE, SIGMA, UP, Keep
from mesp_core.lifetimes.lean import attended
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.planner.cost import PARTS, Cost

Chosen = tuple[Keep, str]  # and where block inputs are: memory or disk
Peak = Callable[[Keep, str], float]


def fastest(sizes: Sizes, cost: Cost, peak: Peak, limit: float, inputs: Sequence[str]) -> Chosen | None:
    """The plan of least time whose `peak` is at most `limit` bytes; None if there is none.

    For each place of the block inputs and each size of the MLP's parts, memory goes first to what saves most time a byte.
    """
    found: list[tuple[float, Chosen]] = []
    for where in inputs:
        for part in PARTS:
            keep = Keep(sizes.layers, part_elements=part)
            if peak(keep, where) > limit:
                continue
            for name in _by_worth(sizes, cost):
                keep = _as_many_as_fit(keep, name, lambda keep, where=where: peak(keep, where) <= limit)
            found.append((cost.seconds(keep, where), (keep, where)))
    return min(found, key=lambda entry: entry[0])[1] if found else None


def _by_worth(sizes: Sizes, cost: Cost) -> list[str]:
    """What can be kept of a block, the most time saved a byte first."""
    activation = sizes.of_item(sizes.tokens, sizes.model.intermediate_size)
    nbytes = {ATTENTION: attended(sizes) + sizes.block_input, GATE: activation, UP: activation, SIGMA: activation}
    saved = cost.saved
    return sorted(nbytes, key=lambda name: saved[name] / nbytes[name], reverse=True)


def _as_many_as_fit(keep: Keep, name: str, fits: Callable[[Keep], bool]) -> Keep:
    """`keep` with that of the most blocks, between 0 and all, that still fits; it fits as it is."""
    low, high = 0, keep.layers
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(keep, **{name: middle})):
            low = middle
        else:
            high = middle - 1
    return replace(keep, **{name: low})
