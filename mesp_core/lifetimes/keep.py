"""What `lean` does with memory beyond what it must have. Loads no MLX, because the planner decides it."""

from dataclasses import dataclass

# ATTENTION: q, k, v, o, the scores' lse and x₂. GATE, UP: the MLP's two products. SIGMA: σ(gate).
ATTENTION, GATE, UP, SIGMA = "attention", "gate", "up", "sigma"
ACTIVATIONS = (GATE, UP, SIGMA)
# Elements of one MLP matrix that are dequantised at once: the least that is not slow, and the most that still gains speed.
SMALL_PART, LARGE_PART = 131_072, 458_752


@dataclass(frozen=True)
class Keep:
    """Of how many of the `layers` blocks each is kept from the forward to the backward, so that it is not computed again.

    It is the last so many blocks, whose memory is the first to be free again. `part_elements`: how many elements of an MLP
    matrix are dequantised at once; more is faster.
    """

    layers: int
    attention: int = 0
    gate: int = 0
    up: int = 0
    sigma: int = 0
    part_elements: int = SMALL_PART

    def keeps(self, layer: int, what: str) -> bool:
        """Whether `what` of this block (from 0) is kept."""
        return layer >= self.layers - getattr(self, what)

    def activations(self, layer: int) -> tuple[str, ...]:
        """Which of the MLP's activations of this block are kept."""
        return tuple(name for name in ACTIVATIONS if self.keeps(layer, name))
