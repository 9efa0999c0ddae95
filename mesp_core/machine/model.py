"""What a machine is to the planner: how long it takes for each kind of work. Loads no MLX."""

from dataclasses import dataclass

NARROWER = 4  # how many times, from `products` to `narrow_products`


@dataclass(frozen=True)
class MachineModel:
    """One machine's figures for one number type of the activations.

    Names that end in `_s` are seconds for one of a thing, the others a number of things a second.

    Attributes:
        name: what it is called.
        source: where the figures are from, in words that can stand behind the name.
        gpu: whether MLX computes on a GPU: then the host goes on while the device works.
        measured: whether the figures were measured on this machine.
        wait_s: a blocking evaluation, beside what is evaluated.
        submit_s: handing one piece of work over.
        launch_s: one kernel, beside its arithmetic.
        quantized_forward, quantized_backward: multiply-adds of x·Wᵀ and g·W by MLX's own quantised product.
        products: multiply-adds of float32 matrices, in the sizes in which frozen ones are dequantised.
        narrow_products: the same with so many times fewer rows of the frozen matrix.
        own_products: multiply-adds of matrices in the activations' number type, as attention's.
        thin_products: of a matrix and one as narrow as an adapter's, in the activations' number type.
        thin_float_products: the same in float32.
        dequantized: elements of a frozen matrix.
        exponentials: numbers through this project's exponential.
        softmaxes: numbers through MLX's own softmax, logsumexp or sigmoid.
        elements: numbers that an elementwise kernel writes.
        file_bytes: of a checkpoint, copied out of the pages of its file.
        disk_bytes: of a scratch file, either way.
    """

    name: str
    source: str
    gpu: bool
    measured: bool
    wait_s: float
    submit_s: float
    launch_s: float
    quantized_forward: float
    quantized_backward: float
    products: float
    narrow_products: float
    own_products: float
    thin_products: float
    thin_float_products: float
    dequantized: float
    exponentials: float
    softmaxes: float
    elements: float
    file_bytes: float
    disk_bytes: float

    def __str__(self) -> str:
        return f"{self.name}, {self.source}"
