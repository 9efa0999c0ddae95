"""What the maths of a block needs to know of an architecture, read from its data once a run."""

from dataclasses import dataclass

from mesp_core.models.architecture import Architecture
from mesp_core.ops import rope
from mesp_core.ops.rope import Rotation


@dataclass(frozen=True)
class BlockShape:
    """Heads, norms and rotation of every block.

    `attention_norm` and `mlp_norm` name the norms before the two halves.
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rotation: Rotation
    attention_norm: str = Architecture.attention_norm
    mlp_norm: str = Architecture.mlp_norm

    @classmethod
    def of(cls, architecture: Architecture) -> "BlockShape":
        """Built once a run, because it holds the rotation's frequencies."""
        spec, dims = architecture.rope, architecture.head_dim
        freqs = rope.llama3_frequencies(dims, spec.theta, spec.llama3) if spec.llama3 else None
        return cls(
            architecture.num_attention_heads,
            architecture.num_key_value_heads,
            dims,
            architecture.rms_norm_eps,
            Rotation(dims, spec.theta, spec.position_scale, freqs, spec.traditional),
            architecture.attention_norm,
            architecture.mlp_norm,
        )

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5
