"""What a method may be called: `NAME[:option[=value]…]`. The same string is its key in results. Loads no MLX."""

from dataclasses import dataclass

from mesp_core.errors import UsageError

FLAG = "flag"

# name -> option -> allowed values (FLAG: the option stands alone)
METHODS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "autodiff": {"grad-checkpoint": FLAG},
    "mebp": {"weights": ("streamed", "resident")},
    "mesp": {"weights": ("streamed", "resident")},
    "mesp-store-h": {"weights": ("streamed", "resident")},
}
DESCRIPTIONS = {
    "autodiff": "mlx-lm's own model and LoRA layers under one value_and_grad; holds the whole model and every activation",
    "mebp": "keeps each block's input, re-runs the block and differentiates it automatically (Apple's baseline)",
    "mesp": "keeps each block's input, re-runs the block, hand-written backward, h = xA recomputed (the paper)",
    "mesp-store-h": "as mesp, with h = xA kept from the re-run (the paper's ablation)",
}


@dataclass(frozen=True)
class MethodSpec:
    """A parsed method string."""

    key: str
    name: str
    options: dict[str, str | bool]


def parse_method(text: str) -> MethodSpec:
    """Parse `NAME[:option[=value]…]`.

    Raises:
        UsageError: for an unknown name, option or value, naming what is allowed.
    """
    name, *parts = text.strip().split(":")
    if name not in METHODS:
        raise UsageError(f"method: unknown name {name!r}; allowed are {', '.join(METHODS)}.")
    allowed, options = METHODS[name], {}
    for part in parts:
        option, has_value, value = part.partition("=")
        if option not in allowed:
            raise UsageError(f"method {text!r}: {name} has no option {option!r}; it has {', '.join(allowed)}.")
        if option in options:
            raise UsageError(f"method {text!r}: the option {option!r} is given twice.")
        values = allowed[option]
        if values == FLAG:
            if has_value:
                raise UsageError(f"method {text!r}: the option {option!r} takes no value.")
            options[option] = True
        elif value not in values:
            raise UsageError(f"method {text!r}: {option}={value!r}; allowed are {', '.join(values)}.")
        else:
            options[option] = value
    return MethodSpec(text.strip(), name, options)


def parse_methods(text: str) -> tuple[MethodSpec, ...]:
    """Parse a comma-separated list of methods; each may stand once."""
    specs = tuple(parse_method(part) for part in text.split(",") if part.strip())
    if not specs:
        raise UsageError("methods: none given; name at least one, for example mebp,mesp.")
    keys = [spec.key for spec in specs]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"methods: {key!r} is named twice.")
    return specs


def folder_name(key: str) -> str:
    """A method's folder below --out. A colon is a path separator in the Finder, so options are joined by a hyphen."""
    return key.replace(":", "-")
