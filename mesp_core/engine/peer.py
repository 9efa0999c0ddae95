"""What `autodiff` uses of mlx-lm."""

from mesp_core.processes.open_files import limits_as_they_can_be

with limits_as_they_can_be():
    from mlx_lm.tuner.trainer import grad_checkpoint
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import dequantize_model, load_model

__all__ = ["dequantize_model", "grad_checkpoint", "linear_to_lora_layers", "load_model"]
