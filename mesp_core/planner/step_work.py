"""The work of one whole step of every method."""

from dataclasses import replace

from mesp_core.lifetimes.keep import ATTENTION as ATTENDED
from mesp_core.lifetimes.keep import GATE, SIGMA, UP, Keep
from mesp_core.lifetimes.sizes import Sizes
from mesp_core.methods.names import MethodSpec
from mesp_core.methods.record import Rerun, Rows, WholeModel
from mesp_core.models.architecture import ATTENTION, MLP, PROJECTIONS
from mesp_core.ops.pieces import TOKENS, mesp_part_elements
from mesp_core.planner import dispatch
from mesp_core.planner.dispatch import WHOLE_ROWS, Dispatch
from mesp_core.planner.work import (
    NORM,
    NORM_BACKWARD,
    ROPE,
    Work,
    adapter,
    dequantised,
    features,
    frozen,
    heads,
    hidden,
    in_parts,
    lean_scores,
    passes,
    scores,
    stored,
    total,
    written,
)
from mesp_core.settings.run_config import RunConfig

# Elementwise kernels over the adapters in an update.
UPDATE = {"sgd": 3, "adam": 14, "adamw": 15}
SIGMOID = 4  # elementwise kernels of the sigmoid beside its exponential


class StepWork:
    """One configuration and method; `work` can be asked for several ways of keeping, quickly."""

    def __init__(self, config: RunConfig, spec: MethodSpec, sizes: Sizes) -> None:
        self._config, self._spec, self._kind, self.sizes = config, spec, spec.record.kind, sizes
        self._short = sizes.numbers == "short"  # adapters are multiplied in 16 bits
        self._attend, self._turn_back = self._lean_attention()
        self._loss = self._of_loss()

    def work(self, keep: Keep | None, inputs: str) -> Work:
        """Of one step. `keep` is lean's, `inputs` memory or disk."""
        s = self.sizes
        match self._kind:
            case WholeModel():
                micro_batch = self._whole_model()
            case Rerun(automatic=automatic, keeps_h=keeps_h):
                micro_batch = s.layers * self._rerun(automatic, keeps_h) + self._loss
            case Rows():
                micro_batch = total(*(self._rows(keep, layer) for layer in range(s.layers))) + self._loss
            case other:
                raise TypeError(f"{self._spec.name}: nothing is known of the time of {type(other).__name__}")
        if inputs == "disk":
            micro_batch += Work(disk_bytes=2 * s.layers * s.block_input)
        update = Work(elements=UPDATE[self._config.optimizer] * s.adapters / s.adapter_item)
        return self._config.grad_accumulation * micro_batch + update

    # --- mebp, mesp ---

    def _whole_attention(self) -> Work:
        """engine/attention.py's forward with whole rows of scores: projections, turns, softmax, o_proj."""
        s = self.sizes
        return total(
            *(self._linear(name) for name in ATTENTION),
            Work(own_products=2 * scores(s) * s.model.head_dim, softmaxes=scores(s), elements=4 * scores(s)),
            heads(s, ROPE),
            hidden(s, NORM + 1),
        )

    def _whole_mlp(self) -> Work:
        s = self.sizes
        gated = replace(features(s, SIGMOID + 2), exponentials=s.tokens * s.model.intermediate_size)
        return total(*(self._linear(name) for name in MLP), gated, hidden(s, NORM + 1))

    def _linear(self, name: str, backward: bool = False) -> Work:
        """A projection and its adapter, all tokens at once: forward, or ∂x and the adapter's gradients."""
        s, times = self.sizes, 2 if backward else 1
        made = written(s, (name,), 0, 4) if backward else written(s, (name,), 4, 0)
        return frozen(s, s.linear(name), backward) + adapter(s, name, times, not self._short) + made

    def _rerun(self, automatic: bool, keeps_h: bool) -> Work:
        """A block's forward and backward."""
        s = self.sizes
        forward = self._whole_attention() + self._whole_mlp()
        backward = self._automatic() if automatic else self._by_hand(keeps_h)
        called = dispatch.mebp(s) if automatic else dispatch.mesp(s)
        read = Work(file_bytes=2 * s.block_weights if s.streamed else 0)
        return total(forward, backward, read, _calls(called))

    def _automatic(self) -> Work:
        """mx.vjp through a block: forward again, and MLX's own derivative of it."""
        s = self.sizes
        return total(
            self._whole_attention(),
            self._whole_mlp(),
            *(self._linear(name, backward=True) for name in PROJECTIONS),
            Work(own_products=4 * scores(s) * s.model.head_dim, elements=9 * scores(s)),
            features(s, 14),
            heads(s, ROPE + 2),
            hidden(s, 2 * NORM_BACKWARD),
        )

    def _by_hand(self, keeps_h: bool) -> Work:
        s = self.sizes
        seen = scores(s, WHOLE_ROWS)
        again = 0 if keeps_h else 0.5  # h = x·A of attention's four
        return total(
            self._whole_attention(),
            self._mlp_backward((), mesp_part_elements(s.hidden)),
            *(self._linear(name, backward=True) for name in ATTENTION),
            *(again * adapter(s, name, 1, not self._short) for name in ATTENTION),
            Work(products=5 * seen * s.model.head_dim, softmaxes=seen, elements=8 * seen),
            heads(s, ROPE + 6),
            hidden(s, 2 * NORM_BACKWARD + NORM),
        )

    def _mlp_backward(self, held: tuple[str, ...], part_elements: int, opened: int = 1) -> Work:
        """engine/mlp.py's backward: ∂a, the features again unless they are held, ∂n; each matrix is opened once."""
        s = self.sizes
        down, *into = (s.linear(name) for name in ("down_proj", "gate_proj", "up_proj"))
        again = [entry for entry, name in zip(into, (GATE, UP), strict=True) if name not in held]
        # Without what is dequantised: a matrix is used for both directions.
        multiplied = [frozen(s, entry, True, opened=0) for entry in (down, *into)]
        multiplied += [frozen(s, entry, opened=0) for entry in again]
        sigma = Work() if SIGMA in held else features(s, SIGMOID) + Work(exponentials=s.tokens * s.model.intermediate_size)
        return total(
            in_parts(s, total(*multiplied), part_elements),
            *([] if s.quantized else [opened * dequantised(entry) for entry in (down, *into)]),
            *(adapter(s, name, 3, in_float32=True) for name in MLP),
            features(s, 15 + 2 * len(again)),
            sigma,
        )

    # --- lean ---

    def _lean_attention(self) -> tuple[Work, Work]:
        """Attention by rows and tiles: forward, backward."""
        s = self.sizes
        opened, seen, dims = passes(s, TOKENS), lean_scores(s), s.model.head_dim
        adapters = total(*(adapter(s, name, 1, in_float32=True) for name in ATTENTION))
        read = Work(file_bytes=opened * stored(s, ATTENTION) if s.streamed else 0)
        forward = total(
            *(frozen(s, s.linear(name), opened=opened) for name in ATTENTION),
            adapters,
            written(s, ATTENTION, 4, 0),
            Work(products=2 * seen * dims, exponentials=seen, elements=4 * seen),
            heads(s, ROPE + 2),
            hidden(s, NORM + 2),
            read,
        )
        backward = total(
            *(frozen(s, s.linear(name), True, opened) for name in ATTENTION),
            3 * adapters,
            written(s, ATTENTION, 0, 4),
            Work(products=5 * seen * dims, exponentials=seen, elements=6 * seen),
            heads(s, ROPE + 6),
            hidden(s, 2 * NORM_BACKWARD + 2 * NORM),
            read,
        )
        return forward, backward

    def _rows(self, keep: Keep, layer: int) -> Work:
        s = self.sizes
        opened, held = passes(s, TOKENS), keep.activations(layer)
        read = Work(file_bytes=2 * opened * stored(s, MLP) if s.streamed else 0)
        mlp_forward = total(
            in_parts(s, total(*(frozen(s, s.linear(name), opened=opened) for name in MLP)), keep.part_elements),
            *(adapter(s, name, 1, in_float32=True) for name in MLP),
            replace(features(s, SIGMOID + 8 + 2 * len(held)), exponentials=s.tokens * s.model.intermediate_size),
            hidden(s, NORM + 4),
        )
        attention = (1 if keep.keeps(layer, ATTENDED) else 2) * self._attend + self._turn_back
        mlp = mlp_forward + self._mlp_backward(held, keep.part_elements, opened)
        return total(attention, mlp, read, _calls(dispatch.lean(s, keep, layer)))

    # --- around the blocks ---

    def _of_loss(self) -> Work:
        """engine/token_loss.py: the head forward and back, some of the vocabulary at a time, dequantised once for both."""
        s = self.sizes
        head, opened = s.checkpoint.head, passes(s, TOKENS)
        full = self._kind.blockwise and self._spec.option("loss") == "full"
        numbers = s.tokens * s.model.vocab_size
        return total(
            frozen(s, head, opened=2 if full else opened),
            frozen(s, head, True, opened=0),
            Work(exponentials=numbers, elements=6 * numbers),
            Work(file_bytes=(2 if full else opened) * s.stored(head) if s.streamed else 0),
            _calls(dispatch.loss(s)),
        )

    def _whole_model(self) -> Work:
        """mlx-lm's model: every product as MLX makes it on its own, whatever kernel the other methods use."""
        s = replace(self.sizes, quantized=True)
        checkpointing = bool(self._spec.option("grad-checkpoint"))
        numbers, up = s.tokens * s.model.vocab_size, s.tokens * s.model.intermediate_size
        dims, head = s.model.head_dim, s.checkpoint.head
        forward = total(
            *(frozen(s, s.linear(name)) for name in PROJECTIONS),
            *(adapter(s, name, 1, not self._short) for name in PROJECTIONS),
            written(s, PROJECTIONS, 3, 0),
            Work(own_products=2 * scores(s) * dims, softmaxes=scores(s) + up, elements=4 * scores(s) + 3 * up),
            heads(s, ROPE),
            hidden(s, 4),
        )
        backward = total(
            *(frozen(s, s.linear(name), backward=True) for name in PROJECTIONS),
            *(adapter(s, name, 2, not self._short) for name in PROJECTIONS),
            written(s, PROJECTIONS, 0, 4),
            Work(own_products=4 * scores(s) * dims, elements=9 * scores(s) + 8 * up),
            heads(s, ROPE),
            hidden(s, 2 * NORM_BACKWARD),
        )
        loss = frozen(s, head) + frozen(s, head, backward=True) + Work(softmaxes=2 * numbers, elements=6 * numbers)
        blocks = (2 if checkpointing else 1) * forward + backward + _calls(dispatch.autodiff(s, checkpointing))
        return s.layers * blocks + loss + Work(drains=2, pieces=2)


def _calls(calls: Dispatch) -> Work:
    return Work(kernels=calls.kernels, pieces=calls.pieces, drains=calls.drains)
