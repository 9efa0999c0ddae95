"""The phases of one whole step of every method: what a block's passes hold, on top of what is held across blocks."""

from collections.abc import Iterable
from functools import cache

from mesp_core.lifetimes import autodiff, lean, loss, rerun
from mesp_core.lifetimes.keep import ATTENTION, Keep
from mesp_core.lifetimes.lean import GRADIENTS, HEADS, STATES
from mesp_core.lifetimes.sizes import Moment, Sizes, together
from mesp_core.methods.names import MethodSpec
from mesp_core.methods.record import Rerun, Rows, WholeModel
from mesp_core.settings.run_config import RunConfig

ADAPTERS, STATE, INPUTS, KEPT = "adapters", "optimizer state", "block inputs", "kept activations"
BLOCK, HELD, SUMS = "block weights", "weights", "gradients held"
Phases = dict[str, Moment]


class Step:
    """One configuration and method; `phases` can be asked for several ways of keeping, quickly."""

    def __init__(self, config: RunConfig, spec: MethodSpec, sizes: Sizes) -> None:
        self._config, self._spec, self._kind, self.sizes = config, spec, spec.record.kind, sizes
        adam = config.optimizer != "sgd"
        float32 = 4 / sizes.adapter_item  # in which Adam keeps its moments and computes, whatever the adapters are
        self._always: Moment = {ADAPTERS: sizes.adapters, STATE: 2 * float32 * sizes.adapters if adam else 0}
        # Measured: Adam's and AdamW's update of a part takes 1.0 to 1.4 times its adapters for new values; SGD's nothing.
        self._update = {STATE: 1.4 * float32 * sizes.block_adapters if adam else 0}
        if self._kind.blockwise and not sizes.streamed:
            self._always[HELD] = sizes.resident
        self._full_loss = self._kind.blockwise and spec.option("loss") == "full"
        self._attend = cache(lambda: largest(lean.attend(sizes)))
        self._attention_backward = cache(lambda: largest(lean.attention_backward(sizes)))
        self._second_norm = cache(lambda: largest(lean.second_norm_backward(sizes)))
        self._mlp_forward = cache(lambda part, kept: largest(lean.mlp_forward(sizes, part, kept)))
        self._mlp_backward = cache(lambda part, held: largest(lean.mlp_backward(sizes, part, held, list(sizes.chunks()))))
        self._loss = cache(lambda: largest(loss.moments(sizes, self._full_loss)))

    def phases(self, keep: Keep | None, inputs: str) -> Phases:
        """Each phase's moment of the most memory. `keep` is lean's, `inputs` memory or disk."""
        on_disk = inputs == "disk"
        match self._kind:
            case WholeModel():
                return self._whole_model()
            case Rerun(moments=moments):
                forward, of_loss, backward = self._rerun(moments(self.sizes), on_disk)
            case Rows():
                forward, of_loss, backward = self._rows(keep, on_disk)
            case other:
                raise TypeError(f"{self._spec.name}: nothing is known of the memory of {type(other).__name__}")
        states = 3 * 4 * self.sizes.tokens * self.sizes.hidden  # the embedding's rows, dequantised, then gathered
        forward.append(together(self._always, self._held_gradients(None), {STATES: states}))
        phases = {"forward": largest(forward), "loss": of_loss, "backward": largest(backward)}
        if self._config.max_grad_norm:
            phases["update"] = together(self._always, {SUMS: self.sizes.adapters}, self._update)
        return phases

    def _held_gradients(self, layer: int | None) -> Moment:
        """Gradients that wait for the end of the step while a block's are made (None: in forward and loss)."""
        s, waiting = self.sizes, self._config.max_grad_norm > 0
        below = s.layers if layer is None else layer + 1
        held = s.block_adapters * (s.layers - below) if waiting else 0
        if self._config.grad_accumulation > 1:
            # The last micro-batch meets the sums of those before; the ones before it leave what is done.
            held = s.adapters if waiting else s.block_adapters * max(below, s.layers - below)
        return {SUMS: held}

    def _whole_model(self) -> Phases:
        s = self.sizes
        moments = [together(self._always, autodiff.moment(s, bool(self._spec.option("grad-checkpoint"))))]
        weights = moments[0]["weights"]
        # All adapters are updated at once.
        moments.append(together(self._always, {"weights": weights, SUMS: s.adapters, STATE: 1.4 * self._always[STATE] / 2}))
        if self._config.grad_accumulation > 1:
            moments = [together(moment, {SUMS: s.adapters}) for moment in moments]
        phases = {"all": largest(moments)}
        if self._config.max_grad_norm:
            phases["update"] = moments[1]
        return phases

    def _inputs(self, layer: int, on_disk: bool) -> Moment:
        """Block inputs while a block is worked on, its own among them."""
        return {INPUTS: self.sizes.block_input * (1 if on_disk else layer + 1)}

    def _loss_phase(self, kept: float, on_disk: bool) -> Moment:
        s = self.sizes
        inputs = {INPUTS: 0 if on_disk else s.layers * s.block_input, STATES: s.block_input, KEPT: kept}
        return together(self._always, self._held_gradients(None), inputs, self._loss())

    def _after_block(self, layer: int, on_disk: bool) -> Moment:
        """∂x, the gradients as they are handed over, and the update."""
        s = self.sizes
        inputs = 0 if on_disk else layer * s.block_input
        return together({INPUTS: inputs, STATES: s.block_input, GRADIENTS: s.block_adapters}, self._update)

    def _rows(self, keep: Keep, on_disk: bool) -> tuple[list[Moment], Moment, list[Moment]]:
        s, part = self.sizes, keep.part_elements
        x, activation = s.block_input, s.of_item(s.tokens, s.model.intermediate_size)
        attended = lean.attended(s)
        norms: Moment = {} if not s.streamed else {BLOCK: s.small}
        mlp_sums = {GRADIENTS: sum(s.adapter(name) for name in lean.MLP_NAMES)}
        forward, backward, kept = [], [], 0.0
        for layer in range(s.layers):
            held, with_attention = keep.activations(layer), keep.keeps(layer, ATTENTION)
            base = together(self._always, norms, {KEPT: kept})
            waiting = self._held_gradients(None)
            forward.append(together(base, waiting, self._inputs(layer, on_disk), self._attend()))
            mine = {KEPT: len(held) * activation, STATES: x, HEADS: attended if with_attention else 0}
            inputs = {INPUTS: 0 if on_disk else (layer + 1) * x}  # x itself is not needed beside x₂
            forward.append(together(base, waiting, inputs, mine, self._mlp_forward(part, bool(held))))
            gradient = together(base, self._held_gradients(layer), self._inputs(layer, on_disk), {STATES: x})
            if not with_attention:
                backward.append(together(gradient, {KEPT: len(held) * activation}, self._attend()))
            whole = together(gradient, {HEADS: attended, STATES: x, KEPT: len(held) * activation})
            backward.append(together(whole, self._mlp_backward(part, held)))
            backward.append(together(whole, self._second_norm()))
            backward.append(together(gradient, mlp_sums, self._attention_backward()))
            after = together(base, self._held_gradients(layer), self._after_block(layer, on_disk))
            backward.append(after)
            kept += len(held) * activation + (attended + x if with_attention else 0)
        return forward, self._loss_phase(kept, on_disk), backward

    def _rerun(self, of_backward: list[Moment], on_disk: bool) -> tuple[list[Moment], Moment, list[Moment]]:
        s = self.sizes
        block = {BLOCK: s.block_weights if s.streamed else 0}
        forward_most = largest(rerun.forward(s))
        backward_most = largest(of_backward)
        # Forward holds the last block's input most of all; backward begins with it.
        last = s.layers - 1
        base = together(self._always, block, self._inputs(last, on_disk))
        forward = [together(base, self._held_gradients(None), forward_most)]
        backward = []
        for layer in range(s.layers):
            base = together(self._always, self._held_gradients(layer))
            here = together(base, block, self._inputs(layer, on_disk), {STATES: s.block_input})
            backward.append(together(here, backward_most))
            backward.append(together(base, block, self._after_block(layer, on_disk)))
        return forward, self._loss_phase(0, on_disk), backward


def largest(moments: Iterable[Moment]) -> Moment:
    """The one of the most bytes."""
    return max(moments, key=lambda moment: sum(moment.values()))
