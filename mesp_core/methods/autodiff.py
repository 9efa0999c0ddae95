"""autodiff: what mlx-lm's own trainer does; the judge."""

from mesp_core.methods.record import FLAG, Record, WholeModel

AUTODIFF = Record(
    name="autodiff",
    description="mlx-lm's own model and LoRA layers under one value_and_grad; holds the whole model and every activation",
    kind=WholeModel(),
    color=3,
    overhead_mb=25.0,  # 19 and 30 in two runs, with SmolLM2-135M
    options={"grad-checkpoint": FLAG},
    variants=("grad-checkpoint",),
)
