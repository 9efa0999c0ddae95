"""MeSP (Park et al., arXiv 2602.13069): keep each block's input; re-run the block, hand-written backward.

`mesp` recomputes h = xA where the backward needs it, `mesp-store-h` keeps it from the re-run (the paper's table 5).
"""

from functools import partial

from mesp_core.lifetimes import rerun
from mesp_core.methods.record import BLOCKWISE, Record, Rerun


def _rerun(keep_h: bool) -> Rerun:
    def backward():
        from mesp_core.engine import mesp

        return partial(mesp.block_backward, keep_h=keep_h)

    return Rerun(backward, partial(rerun.mesp_backward, keep_h=keep_h), keeps_h=keep_h)


MESP = Record(
    name="mesp",
    description="keeps each block's input, re-runs the block, hand-written backward, h = xA recomputed (the paper)",
    kind=_rerun(keep_h=False),
    color=1,
    overhead_mb=12.5,
    options=BLOCKWISE,
)

MESP_STORE_H = Record(
    name="mesp-store-h",
    description="as mesp, with h = xA kept from the re-run (the paper's ablation)",
    kind=_rerun(keep_h=True),
    color=2,
    overhead_mb=12.5,
    options=BLOCKWISE,
)
