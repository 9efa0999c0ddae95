"""lean: ours, the smallest exact one."""

from mesp_core.methods.record import BLOCKWISE, SIZE, Record, Rows

LEAN = Record(
    name="lean",
    description="as mesp, and nothing larger than it must be ever exists; with a budget it keeps what saves the most time",
    kind=Rows(),
    color=4,
    overhead_mb=6.0,
    options=BLOCKWISE | {"budget": SIZE},
    variants=("inputs=disk",),
)
