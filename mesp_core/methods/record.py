"""What is said of a method, all of it in one place: its words, its options, how it computes, what the planner must know.

A record says how its method computes by one of three kinds: `WholeModel`, `Rerun` or `Rows`. Whoever works with a method
asks its record or its kind, never its name. Loads no MLX: engines are imported when a kind is asked for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesp_core.lifetimes.keep import Keep
from mesp_core.lifetimes.sizes import Moment, Sizes

if TYPE_CHECKING:
    from mesp_core.engine.blockwise import Passes
    from mesp_core.engine.rerun import BlockBackward
    from mesp_core.engine.shape import BlockShape

FLAG = "flag"  # the option stands alone
SIZE = "size"  # its value is one, see names.parse_size

# option -> its values, the default first; or FLAG (False unless given), or SIZE (None unless given)
Options = dict[str, str | tuple[str, ...]]

# The options of every method that goes block by block.
BLOCKWISE: Options = {
    "weights": ("streamed", "resident", "mapped"),
    "loss": ("chunked", "full"),
    "inputs": ("memory", "disk"),
    "tmpfs": FLAG,
}


@dataclass(frozen=True)
class WholeModel:
    """One `value_and_grad` over mlx-lm's own model: the judge of the others' gradients."""

    blockwise = False
    keeps = False

    def load(self) -> None:
        """Import what it computes with, which takes memory that is no method's."""
        from mesp_core.engine import peer  # noqa: F401


@dataclass(frozen=True)
class Rerun:
    """Of a block only its input is kept; its backward runs the whole block again.

    Attributes:
        backward: gives that backward, which needs MLX, when it is asked for.
        moments: what that backward holds, for the planner, beside the block's input, ∂L/∂y and weights.
        automatic: whether it is MLX's own derivative of the block.
        keeps_h: whether h = xA is kept from the re-run.
    """

    backward: Callable[[], "BlockBackward"]
    moments: Callable[[Sizes], list[Moment]]
    automatic: bool = False
    keeps_h: bool = False
    blockwise = True
    keeps = False

    def load(self) -> None:
        """Nothing but MLX and the engine itself."""

    def passes(self, shape: "BlockShape", keep: Keep) -> "Passes":
        """The engine's two ways through a block; `keep` is for others."""
        from mesp_core.engine.rerun import Rerun as Passes

        return Passes(shape, self.backward())


@dataclass(frozen=True)
class Rows:
    """A block goes over some tokens and some weights at a time, and keeps between forward and backward what `Keep` says."""

    blockwise = True
    keeps = True

    def load(self) -> None:
        """Nothing but MLX and the engine itself."""

    def passes(self, shape: "BlockShape", keep: Keep) -> "Passes":
        """The engine's two ways through a block."""
        from mesp_core.engine.lean import Lean

        return Lean(shape, keep)


Kind = WholeModel | Rerun | Rows


@dataclass(frozen=True)
class Record:
    """A method.

    Attributes:
        name: what it is called, in results, too.
        description: a line for a person who chooses among methods.
        kind: how it computes.
        color: its place in the palette of app/widgets/theme.py.
        overhead_mb: training memory above the allocator's peak: malloc, the BLAS's buffers, code first used in training.
            Measured in workers under Linux, as `training_memory_mb` − `allocator_peak_mb` of results.json: qwen2.5-0.5b, 256
            tokens, preset paper with float32 adapters, two steps of `mesp compare`; autodiff's lies between two runs.
        options: what may stand behind its name.
        variants: options with which it is worth a row of its own in `mesp plan`.
        exact: whether its gradients are those of autodiff, up to rounding; `mesp check` holds it to that.
    """

    name: str
    description: str
    kind: Kind
    color: int
    overhead_mb: float
    options: Options
    variants: tuple[str, ...] = ()
    exact: bool = True

    @property
    def has_budget(self) -> bool:
        """Whether it can be given an amount of memory to stay within."""
        return "budget" in self.options
