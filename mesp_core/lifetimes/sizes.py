"""The sizes that a plan is made of: bytes of arrays by the shapes that the engine gives them. Loads no MLX.

Each number is read off the code that makes the array, or measured where MLX decides; then it says so. MLX frees an array of
a graph only when what reads it has run, and starts up to ten steps of a graph ahead of that, so what counts at a peak is
nearly everything that one evaluation makes and does not write over its input.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mesp_core.models.architecture import PROJECTIONS, Architecture, projection_path
from mesp_core.models.checkpoint import Checkpoint, LinearEntry
from mesp_core.ops import pieces
from mesp_core.ops.pieces import TOKENS

# Float32 results that mx.dequantize holds at its peak, its own included, by bits (measured; 4: one or two, by the moment).
DEQUANTIZE = {2: 2.0, 3: 3.0, 4: 2.0, 5: 5.0, 6: 6.0, 8: 2.0}

Moment = dict[str, float]  # what an amount of memory is for -> bytes, at one moment


def together(*moments: Moment) -> Moment:
    """What all of these are at the same moment."""
    total: Moment = {}
    for moment in moments:
        for name, nbytes in moment.items():
            total[name] = total.get(name, 0) + nbytes
    return total


@dataclass(frozen=True)
class Sizes:
    """One run's. `batch` × `length` = `tokens` inputs are computed at once; `item` bytes an activation, `adapter_item` an
    adapter's number; `quantized`: frozen matrices are multiplied as they are stored."""

    checkpoint: Checkpoint
    batch: int
    length: int
    rank: int
    targets: tuple[str, ...]
    item: int
    adapter_item: int
    quantized: bool
    streamed: bool

    @property
    def model(self) -> Architecture:
        """What is trained."""
        return self.checkpoint.architecture

    @property
    def tokens(self) -> int:
        """Rows of every activation."""
        return self.batch * self.length

    @property
    def hidden(self) -> int:
        """Columns of a hidden state."""
        return self.model.hidden_size

    @property
    def queries(self) -> int:
        """Columns of q and o."""
        return self.model.num_attention_heads * self.model.head_dim

    @property
    def keys(self) -> int:
        """Columns of k and of v."""
        return self.model.num_key_value_heads * self.model.head_dim

    @property
    def layers(self) -> int:
        """Blocks."""
        return self.model.num_hidden_layers

    def chunks(self) -> Iterator[tuple[int, bool]]:
        """The largest ranges of rows that work goes by: (rows, whether the whole result exists already)."""
        yield min(self.tokens, TOKENS), False
        if self.tokens > TOKENS:
            yield min(self.tokens - TOKENS, TOKENS), True

    @property
    def numbers(self) -> str:
        """What arrays are: float32, shorter, or mixed: shorter beside float32 adapters, whose products are float32."""
        if self.item == 4:
            return "float32"
        return "mixed" if self.adapter_item == 4 else "short"

    def of_item(self, rows: float, columns: float) -> float:
        """Bytes of an activation."""
        return self.item * rows * columns

    def cast(self, rows: float, columns: float) -> float:
        """Bytes of the float32 copy of an activation, where it is not float32 itself."""
        return 0 if self.item == 4 else 4 * rows * columns

    def operand(self, rows: float, columns: float) -> float:
        """Bytes of an activation in the dtype that the MLP multiplies it in, beside itself."""
        return 0 if self.quantized else self.cast(rows, columns)

    def norm(self, rows: float) -> float:
        """rms_norm's forward. Measured on the CPU: twice its float32 result, 3.5 times float32 where it is half of that."""
        return 4 * rows * self.hidden * (2 if self.item == 4 else 3.5)

    def norm_backward(self, rows: float) -> float:
        """ops/rms_norm.py: five float32 arrays; where activations are shorter, the operands and result, too."""
        return 4 * rows * self.hidden * (5 if self.item == 4 else 7.5)

    def rope(self, columns: float) -> float:
        """One turn, as mx.fast.rope does it on the CPU: the result, halves times cos and sin (two more); angles."""
        angles = self.length * self.model.head_dim / 2 * (12 if self.item == 4 else 16)
        return 3 * self.of_item(self.tokens, columns) + angles

    def linear(self, name: str, layer: int = 0) -> LinearEntry:
        """One of a block's projections."""
        return self.checkpoint.linears[projection_path(layer, name)]

    def stored(self, entry: LinearEntry, elements: float | None = None) -> float:
        """Bytes of a matrix, or of so many of its elements, as the file holds it."""
        whole = sum(tensor.nbytes for name, tensor in entry.tensors.items() if name != "bias")
        return whole if elements is None else whole * elements / (entry.out_features * entry.in_features)

    def weights(self, entry: LinearEntry, elements: float) -> float:
        """So many elements of a matrix, read and, on the CPU, dequantised: at the peak, the result among it."""
        read = self.stored(entry, elements) if self.streamed else 0.0
        if self.quantized:
            return read
        if entry.bits is None:
            return read + (0 if entry.tensors["weight"].dtype == "F32" else 4 * elements)
        scales = 2 * 4 * elements / entry.group_size  # in float32
        return read + scales + 4 * elements * DEQUANTIZE[entry.bits]

    def floats(self, elements: float) -> float:
        """What is left of `weights` once they are dequantised."""
        return 0 if self.quantized else 4 * elements

    def block_rows(self, entry: LinearEntry) -> int:
        """Rows of a matrix that are dequantised, or read, at once."""
        if not self.quantized:
            at_once = pieces.dequantized_rows(entry.in_features)
        elif self.streamed:
            at_once = pieces.stored_rows(int(self.stored(entry) // entry.out_features))
        else:
            at_once = entry.out_features
        return min(at_once, entry.out_features)

    def block_of(self, entry: LinearEntry) -> float:
        """`weights` of one row block."""
        return self.weights(entry, self.block_rows(entry) * entry.in_features)

    def one_block(self, entry: LinearEntry) -> bool:
        """Whether a matrix is done in one go; then nothing is evaluated in between."""
        return self.block_rows(entry) == entry.out_features

    def features(self, part_elements: int) -> int:
        """Features of the MLP at a time."""
        group_size = self.linear("down_proj").group_size
        at_once = pieces.mlp_features(self.hidden, part_elements, group_size, self.quantized)
        return min(at_once, self.model.intermediate_size)

    def adapter(self, name: str, item: int = 4) -> float:
        """Bytes of one projection's A and B, or of their gradients; 0 without an adapter."""
        if name not in self.targets:
            return 0
        return item * self.rank * sum(self.model.projection_shape(name))

    def adapter32(self, *names: str) -> float:
        """float32 copies of adapters that are kept in something else."""
        return 0 if self.adapter_item == 4 else sum(self.adapter(name) for name in names)

    @property
    def block_adapters(self) -> float:
        """Bytes of one block's adapters."""
        return sum(self.adapter(name, self.adapter_item) for name in PROJECTIONS)

    @property
    def adapters(self) -> float:
        """Bytes of all adapters."""
        return self.layers * self.block_adapters

    @property
    def block_input(self) -> float:
        """Bytes of a hidden state."""
        return self.of_item(self.tokens, self.hidden)

    @property
    def small(self) -> float:
        """A block's norms and biases."""
        biases = sum(self.model.projection_shape(name)[0] for name in PROJECTIONS if name in self.model.biases)
        return self.item * (sum(self.model.block_norms().values()) + biases)

    @property
    def block_weights(self) -> float:
        """A whole block as the file holds it."""
        return sum(self.stored(self.linear(name)) for name in PROJECTIONS) + self.small

    @property
    def resident(self) -> float:
        """All matrices that blocks and head are held as, where they are not streamed."""
        blocks = sum(self.stored(self.linear(name, layer)) for layer in range(self.layers) for name in PROJECTIONS)
        return blocks + self.layers * self.small + self.stored(self.checkpoint.head)
