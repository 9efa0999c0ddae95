"""The moments of engine/token_loss.py and ops/cross_entropy.py: from the last hidden state to the loss and back."""

from mesp_core.lifetimes.sizes import Moment, Sizes, together
from mesp_core.ops.pieces import NORM_TOKENS, dequantized_rows, head_rows

HEAD, LOGITS, STATES = "head", "logits", "hidden states"


def moments(s: Sizes, full: bool) -> list[Moment]:
    """What the loss takes beside its input and what outlives it; `full`: all logits at once."""
    found = []
    for rows, filled in [(s.tokens, False)] if full else s.chunks():
        here = _full(s, rows) if full else _online(s, rows)
        # dn, its result, and what rms_norm's backward makes of a few rows
        here.append({STATES: 2 * s.of_item(rows, s.hidden) + s.norm_backward(min(rows, NORM_TOKENS))})
        found += [together({STATES: s.block_input if filled else 0}, moment) for moment in here]
    return found


def _online(s: Sizes, rows: int) -> list[Moment]:
    entry = s.checkpoint.head
    vocab = min(head_rows(s.hidden, s.quantized), entry.out_features)
    weights, kept = s.weights(entry, vocab * s.hidden), s.floats(vocab * s.hidden)
    x32, z = 4 * rows * s.hidden, 4 * rows * vocab
    n = x32 if s.item == 4 else x32 + s.of_item(rows, s.hidden)
    block = 4 * rows * min(vocab, dequantized_rows(s.hidden))
    norm = {STATES: s.norm(rows)}
    # z is filled row block by row block
    scores = {STATES: n + x32, HEAD: weights, LOGITS: z + block}
    # p beside z, and the gradient's sum
    products = {STATES: n + x32, HEAD: kept, LOGITS: 3 * z}
    return [norm, scores, products]


def _full(s: Sizes, rows: int) -> list[Moment]:
    entry = s.checkpoint.head
    x32, z = 4 * rows * s.hidden, 4 * rows * entry.out_features
    n = x32 if s.item == 4 else x32 + s.of_item(rows, s.hidden)
    chunk = min(head_rows(s.hidden, s.quantized), entry.out_features)
    part = s.weights(entry, chunk * s.hidden)
    return [
        {STATES: n, HEAD: part, LOGITS: z + 2 * 4 * rows * chunk},
        {STATES: n, LOGITS: 3 * z},  # z, exp(z − max) and p / total
        {STATES: n + 2 * x32, HEAD: part, LOGITS: z},
    ]
