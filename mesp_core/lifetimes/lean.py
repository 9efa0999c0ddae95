"""The moments of lean: what one block's passes hold.

They are read off engine/attention.py, at the pace `ROWS`, engine/mlp.py and engine/block.py, line by line.
"""

from collections.abc import Iterable

from mesp_core.lifetimes.keep import GATE, SIGMA, UP
from mesp_core.lifetimes.sizes import Moment, Sizes, together
from mesp_core.ops.pieces import NORM_TOKENS, TILE_KEYS, query_tile

STATES, HEADS, MLP = "hidden states", "attention", "MLP activations"
WEIGHTS, COPIES, GRADIENTS = "weights in use", "float32 adapters", "adapter gradients"
MLP_NAMES = ("gate_proj", "up_proj", "down_proj")


def attended(s: Sizes) -> float:
    """q, k, v, o and the scores' lse, as they are kept per block; x₂ comes on top."""
    return s.of_item(s.tokens, 2 * s.queries + 2 * s.keys) + 4 * s.tokens * s.model.num_attention_heads


def attend(s: Sizes) -> list[Moment]:
    """engine/attention.py's `forward`, beside its x."""
    q, kv = s.of_item(s.tokens, s.queries), s.of_item(s.tokens, s.keys)
    found = []
    for rows, filled in s.chunks():
        done = q + 2 * kv if filled else 0
        n = s.of_item(rows, s.hidden)
        entry = s.linear("q_proj")
        found.append({STATES: s.norm(rows), HEADS: done})
        made = s.of_item(rows, s.queries) + _block_result(s, rows, "q_proj")
        found.append({STATES: n + s.cast(rows, s.hidden), HEADS: done + made, WEIGHTS: s.block_of(entry)})
        made = s.of_item(rows, s.queries + s.keys) + _with_adapter(s, rows, "v_proj")
        found.append({STATES: n + 2 * s.cast(rows, s.hidden), HEADS: done + made, WEIGHTS: s.block_of(s.linear("v_proj"))})
        made = s.of_item(rows, s.queries) + _with_adapter(s, rows, "q_proj")
        found.append({STATES: n + s.cast(rows, s.hidden), HEADS: done + made})
    found.append({HEADS: q + 2 * kv + s.rope(s.queries)})
    everything = attended(s)
    found.append({HEADS: everything + _forward_tile(s)})
    for rows, filled in s.chunks():
        y = s.of_item(rows, s.hidden)
        states = y + (s.block_input if filled else 0)
        block = {STATES: states + _block_result(s, rows, "o_proj"), HEADS: s.cast(rows, s.queries)}
        found.append(together({HEADS: everything, WEIGHTS: s.block_of(s.linear("o_proj"))}, block))
        adapted = states + _with_adapter(s, rows, "o_proj")
        found.append({HEADS: everything + s.cast(rows, s.queries), STATES: adapted})
    return found


def mlp_forward(s: Sizes, part_elements: int, kept: bool) -> list[Moment]:
    """engine/mlp.py's `forward` and the norm before it, beside x₂ and what is kept; `kept`: whether anything is."""
    found, entry = [], s.linear("gate_proj")
    features = s.features(part_elements)
    part, floats = s.weights(entry, features * s.hidden), s.floats(features * s.hidden)
    for rows, filled in s.chunks():
        done = s.block_input if filled else 0
        u = (s.item if s.quantized else 4) * rows * features
        n = s.operand(rows, s.hidden) or s.of_item(rows, s.hidden)
        y = 4 * rows * s.hidden
        found.append({STATES: done + s.norm(rows)})
        first = done + s.of_item(rows, s.hidden) + s.operand(rows, s.hidden)
        found.append({STATES: first, WEIGHTS: part, MLP: 2 * u})
        found.append({STATES: done + n + y, WEIGHTS: part, MLP: 3 * u})
        if kept:  # what is kept is one buffer, written in place
            found.append({STATES: done + n + y, MLP: 6 * u})
        if s.quantized or not entry.bits:
            found.append({STATES: done + n + 2 * y, WEIGHTS: part, MLP: u})
        found.append({STATES: done + n + y, WEIGHTS: max(part, floats), MLP: u})
        found.append({STATES: done + n + y + 2 * s.of_item(rows, s.hidden)})
    return found


def mlp_backward(s: Sizes, part_elements: int, held: tuple[str, ...], chunks: Iterable[tuple[int, bool]]) -> list[Moment]:
    """engine/mlp.py's `backward` and the norm's, beside x₂, g and what is kept; `held`: which activations are."""
    found, entry = [], s.linear("gate_proj")
    features = s.features(part_elements)
    part, floats = s.weights(entry, features * s.hidden), s.floats(features * s.hidden)
    # ∂B of gate and up and ∂A of down lie in pieces until the end, then are put together.
    pieces = {name: 0 if not s.adapter(name) else 4 * s.rank * s.model.intermediate_size for name in MLP_NAMES}
    sums = sum(s.adapter(name) for name in MLP_NAMES)
    for rows, filled in chunks:
        grown = {GRADIENTS: sums if filled else 0, STATES: s.block_input if filled else 0}
        u = (s.item if s.quantized else 4) * rows * features
        n = s.operand(rows, s.hidden) or s.of_item(rows, s.hidden)
        g = s.operand(rows, s.hidden)
        dn = 4 * rows * s.hidden
        found.append(together(grown, {STATES: s.norm(rows)}))
        base = together(grown, {STATES: n + g + dn, GRADIENTS: sum(pieces.values())})
        computed = (GATE not in held) + (UP not in held)
        # ∂a, then both weights' parts while u₁, u₂, σ(u₁), a and their gradients are made
        found.append(together(base, {WEIGHTS: part, MLP: 2 * u}))
        # Where both weights are dequantised here, half of what the first one's took is gone by then (measured: some or all).
        weights = computed * part - (0.5 * floats if computed == 2 and not s.quantized else 0)
        found.append(together(base, {WEIGHTS: weights, MLP: (5.3 if SIGMA in held else 6.3) * u}))
        # ∂n, for which the parts that were not needed yet are dequantised
        found.append(together(base, {WEIGHTS: computed * floats + (2 - computed) * part, MLP: 3 * u}))
        found.append(together(base, {GRADIENTS: sums}))  # put together, the pieces not gone yet
    return found


def second_norm_backward(s: Sizes) -> list[Moment]:
    """The rest of `through_mlp` in engine/block.py, beside x₂ and g."""
    sums = sum(s.adapter(name) for name in MLP_NAMES)
    found = []
    for rows, filled in s.chunks():
        states = 4 * rows * s.hidden + (s.block_input if filled else 0)
        found.append(together({STATES: states, GRADIENTS: sums}, _few_rows(s, rows)))
    return found


def attention_backward(s: Sizes) -> list[Moment]:
    """engine/attention.py's `backward`, from o_proj to the block's ∂x, beside x, g (∂L/∂x₂) and the MLP's gradients."""
    q, kv = s.of_item(s.tokens, s.queries), s.of_item(s.tokens, s.keys)
    everything, found = attended(s), []
    copies = {COPIES: s.adapter32("o_proj")}
    for rows, filled in s.chunks():
        done = q if filled else 0
        dx = 4 * rows * s.queries
        entry = s.linear("o_proj")
        found.append(together(copies, {HEADS: everything + done + 2 * dx, WEIGHTS: s.block_of(entry)}))
        casts = {STATES: 2 * s.cast(rows, s.hidden), HEADS: everything + done + s.cast(rows, s.queries)}
        result = (2 if s.item < 4 else 1) * dx
        found.append(together(copies, casts, {HEADS: result}))
    grads = {GRADIENTS: s.adapter("o_proj")}
    head = 2 * 4 * s.length * s.model.head_dim
    found.append(together(grads, {HEADS: everything + q + (q + 2 * kv) + head + _backward_tile(s)}))
    turned = 4 * q + 4 * kv + s.rope(0) * 2
    found.append(together(grads, {HEADS: q + 2 * kv + turned}))
    grads = {GRADIENTS: sum(s.adapter(name) for name in ("o_proj", "q_proj", "k_proj", "v_proj"))}
    for rows, filled in s.chunks():
        base = together(grads, {HEADS: q + 2 * kv, STATES: s.block_input if filled else 0})
        n, more = s.of_item(rows, s.hidden), 4 * rows * s.hidden
        found.append(together(base, {STATES: s.norm(rows)}))
        states = 2 * s.of_item(rows, s.hidden) + 2 * s.cast(rows, s.hidden)
        found.append(together(base, {STATES: states, HEADS: s.cast(rows, s.queries)}))
        for name in ("q_proj", "v_proj"):
            dn = 0 if name == "q_proj" else n
            states = dn + n + 2 * more
            found.append(together(base, {STATES: states, WEIGHTS: s.block_of(s.linear(name))}))
            found.append(together(base, {STATES: dn + n + more + more + s.cast(rows, s.hidden) * 2}))
        found.append(together(base, {STATES: n}, _few_rows(s, rows)))
    return found


def _few_rows(s: Sizes, rows: int) -> Moment:
    """engine/norm.py: its result, and a few rows of the norm's backward."""
    few = min(rows, NORM_TOKENS)
    return {STATES: (s.of_item(rows, s.hidden) if rows > few else 0) + s.norm_backward(few)}


def _block_result(s: Sizes, rows: int, name: str) -> float:
    """One row block's product, in float32 and, where it is another, in the activation's dtype."""
    columns = s.block_rows(s.linear(name))
    return s.of_item(rows, columns) + s.cast(rows, columns)


def _with_adapter(s: Sizes, rows: int, name: str) -> float:
    """y and its sum with the adapter's share, which is float32 first."""
    columns = s.model.projection_shape(name)[0]
    return 2 * s.of_item(rows, columns) + s.cast(rows, columns)


def _tile(s: Sizes) -> tuple[int, int]:
    group = s.model.num_attention_heads // s.model.num_key_value_heads
    return group * min(query_tile(group), s.length), min(TILE_KEYS, s.length)


def _forward_tile(s: Sizes) -> float:
    rows, keys = _tile(s)
    return 4 * (1.25 * rows * keys + (3 * rows + 2 * keys) * s.model.head_dim)


def _backward_tile(s: Sizes) -> float:
    rows, keys = _tile(s)
    return 4 * (2 * rows * keys + 3 * (rows + keys) * s.model.head_dim)
