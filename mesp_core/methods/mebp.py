"""MeBP (Song & Tang, arXiv 2510.03425), Apple's: the baseline."""

from mesp_core.lifetimes import rerun
from mesp_core.methods.record import BLOCKWISE, Record, Rerun


def _backward():
    from mesp_core.engine import mebp

    return mebp.block_backward


MEBP = Record(
    name="mebp",
    description="keeps each block's input, re-runs the block and differentiates it automatically (Apple's baseline)",
    kind=Rerun(_backward, rerun.mebp_backward, automatic=True),
    color=0,
    overhead_mb=23.0,
    options=BLOCKWISE,
)
