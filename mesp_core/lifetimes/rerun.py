"""The moments of mebp and mesp: engine/block.py over a whole block, and MLX's own derivative of it.

Much of a block is one evaluation here, and what MLX holds while it works through that is MLX's choice. Those amounts are
sums of a few array sizes whose factors were fitted to measured peaks: nine runs for each dtype, of one and two layers in
four geometries, 200 to 700 tokens, ranks 8 to 64, with one and two samples; off by up to 6 %, mostly 2 %.
"""

from mesp_core.lifetimes import lean
from mesp_core.lifetimes.lean import GRADIENTS, HEADS, MLP, MLP_NAMES, STATES, WEIGHTS
from mesp_core.lifetimes.sizes import Moment, Sizes, together
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.ops.pieces import BLOCK_ELEMENTS, mesp_part_elements

MB = 1024 * 1024
# Fitted factors by `Sizes.numbers`. Of float32 arrays: (tokens × queries), (tokens × keys), one of all scores; MB.
ATTENTION = {
    "float32": (8.72, 0.56, 1.16, 1.38),
    "short": (5.11, 0.74, 0.60, 1.41),
    "mixed": (7.19, 0.0, 0.65, 0.94),
}
# gate, up and the gate's arrays as down's first row block is evaluated, beside gate's and up's own; of (tokens × features).
GATED = {"float32": 3.0, "short": 3.5, "mixed": 5.75}
# The last evaluation of mesp's backward, of (tokens × hidden).
LAST = {"float32": 8.0, "short": 9.5, "mixed": 12.5}
# Of (tokens × features), (tokens × hidden), (tokens × queries), scores, a block's adapters in float32; MB.
AUTOMATIC = {
    "float32": (9.85, 0.0, 5.41, 1.45, 0.64, 1.5),
    "short": (5.68, 3.26, 1.71, 0.66, 0.38, 2.31),
    "mixed": (8.12, 5.87, 3.31, 0.49, 0.74, 1.04),
}
# Less of (tokens × features) without an adapter: on one of gate and up, on both; in mebp, on each of the MLP's three.
# Measured in one geometry (short: taken to be float32's); these are off by up to 15 %.
UNGATED = {"float32": (1.0, 1.8), "short": (1.0, 1.8), "mixed": (1.9, 3.5)}
LESS_AUTOMATIC = {"float32": 0.45, "short": 0.45, "mixed": 1.1}


def scores(s: Sizes) -> float:
    """All attention scores of a block in float32: what mx.fast's fallback makes."""
    return 4 * s.batch * s.model.num_attention_heads * s.length**2


def forward(s: Sizes) -> list[Moment]:
    """A block's forward, beside its x and its weights."""
    up32 = 4 * s.tokens * s.model.intermediate_size
    up = s.of_item(s.tokens, s.model.intermediate_size)
    y, x2 = s.block_input, s.block_input
    block = 0 if s.quantized else 1.5 * 4 * BLOCK_ELEMENTS  # one or two, by the moment
    # gate and up are held; silu and the product make three float32 arrays as the first row block of down is evaluated.
    missing = sum(name not in s.targets for name in ("gate_proj", "up_proj"))
    mlp = 2 * up + (GATED[s.numbers] - (0, *UNGATED[s.numbers])[missing]) * up32
    return [*_attention(s), {STATES: x2 + y + y * (1 if s.item == 4 else 1.5), MLP: mlp, WEIGHTS: block}]


def mesp_backward(s: Sizes, keep_h: bool) -> list[Moment]:
    """A block's hand-written backward, beside x, g and the block's weights."""
    q, kv, x = s.of_item(s.tokens, s.queries), s.of_item(s.tokens, s.keys), s.block_input
    attended = 2 * q + 2 * kv
    h = {STATES: s.item * s.tokens * s.rank * len(s.targets) if keep_h else 0}
    mlp_sums, sums = (sum(s.adapter(name) for name in names) for names in (MLP_NAMES, PROJECTIONS))
    x32 = 4 * s.tokens * s.hidden
    found = _attention(s)
    held = {HEADS: attended, STATES: x}
    part_elements = mesp_part_elements(s.hidden)
    found += [together(held, h, m) for m in lean.mlp_backward(s, part_elements, (), [(s.tokens, False)])]
    # dn and the norm's backward of all rows; half a float32 array less than in the loss, where dn is cast first
    norm = 5 * x32 if s.item == 4 else 6.5 * x32
    found.append(together(h, {STATES: x + x32 + norm, HEADS: attended, GRADIENTS: mlp_sums}))
    # attention's gradients: pieces, joined, and turned back
    found.append(together(h, {HEADS: 2 * q + 2 * kv + 4 * q + 6.5 * kv, GRADIENTS: mlp_sums + s.adapter("o_proj")}))
    # the last evaluation: ∂n of q, k, v and the norm's backward; matrices of one row block are dequantised in it, too
    single = sum(s.block_of(s.linear(name)) for name in ("k_proj", "v_proj") if s.one_block(s.linear(name)))
    last = LAST[s.numbers] * x32
    found.append(together(h, {HEADS: q + 2 * kv, STATES: x + x32 + last, WEIGHTS: single, GRADIENTS: sums}))
    return found


def mebp_backward(s: Sizes) -> list[Moment]:
    """One vector-Jacobian product of a block, beside x, g and the block's weights."""
    up, hidden, queries, of_scores, adapters, fixed = AUTOMATIC[s.numbers]
    up -= LESS_AUTOMATIC[s.numbers] * sum(name not in s.targets for name in MLP_NAMES)
    grads = sum(s.adapter(name) for name in PROJECTIONS)
    return [
        {
            MLP: up * 4 * s.tokens * s.model.intermediate_size,
            STATES: hidden * 4 * s.tokens * s.hidden + fixed * MB,
            HEADS: queries * 4 * s.tokens * s.queries + of_scores * scores(s),
            GRADIENTS: adapters * grads,
        }
    ]


def _attention(s: Sizes) -> list[Moment]:
    """Up to o_proj's first row block, where all of attention is evaluated; only projections in row blocks are before."""
    queries, keys, of_scores, fixed = ATTENTION[s.numbers]
    made = sum(s.of_item(s.tokens, s.keys) for name in ("k_proj", "v_proj") if not s.one_block(s.linear(name)))
    heads = 4 * s.tokens * (queries * s.queries + keys * s.keys) + of_scores * scores(s)
    made += s.of_item(s.tokens, s.queries)
    return [{HEADS: made + heads, STATES: s.block_input, WEIGHTS: fixed * MB}]
