"""The one moment of autodiff: the whole model under one value_and_grad.

What MLX holds while it works through the one graph is MLX's choice: factors of a few array sizes were fitted to measured
peaks of small models (two to eight layers, hidden sizes 256 and 512, vocabularies of 4,096 to 16,384, 64 to 256 tokens). Off
by up to 3 %, with gradient checkpointing by up to 7 %; 1 % on qwen2.5-0.5b at 256 tokens, which is ten times larger.
"""

from mesp_core.lifetimes.rerun import scores
from mesp_core.lifetimes.sizes import Moment, Sizes

# By bytes of an activation, of float32 arrays. Each layer's: (tokens × features), (tokens × hidden), (tokens × queries and
# keys), scores. Once: logits, (tokens × features). And of the adapters: their gradients.
WHOLE = {4: (4.33, 5.23, 1.87, 1.22, 3.11, 8.88, 0.44), 2: (1.35, 6.71, 1.05, 0.54, 1.52, 5.55, 0.0)}
# With gradient checkpointing, of one layer: the same four; then logits and gradients.
CHECKPOINTED = {4: (11.0, 0.0, 0.0, 0.5, 2.9, 0.4), 2: (5.52, 6.04, 0.0, 0.68, 1.35, 0.1)}


def moment(s: Sizes, checkpointing: bool) -> Moment:
    """Beside the adapters and the optimizer's state."""
    model = s.model
    layer = [
        4 * s.tokens * model.intermediate_size,
        4 * s.tokens * s.hidden,
        4 * s.tokens * (s.queries + s.keys),
        scores(s),
    ]
    if checkpointing:
        up, hidden, heads, of_scores, logits, gradients = CHECKPOINTED[s.item]
        times, once = 1, 0.0
    else:
        up, hidden, heads, of_scores, logits, once, gradients = WHOLE[s.item]
        times = s.layers
    return {
        "weights": _weights(s),
        "MLP activations": (times * up + once) * layer[0],
        "hidden states": times * hidden * layer[1],
        "attention": times * (heads * layer[2] + of_scores * layer[3]),
        "logits": logits * 4 * s.tokens * model.vocab_size,
        "adapter gradients": gradients * s.adapters,
    }


def _weights(s: Sizes) -> float:
    """mlx-lm's model: matrices as the file holds them, everything else in the activations' dtype."""
    total = s.item * sum(s.model.norms().values())
    for entry in s.checkpoint.linears.values():
        elements = entry.out_features * entry.in_features
        if entry.bits is None:
            total += s.item * elements
        else:
            total += elements * entry.bits / 8 + 2 * s.item * elements / entry.group_size
        total += s.item * entry.out_features if "bias" in entry.tensors else 0
    return total
