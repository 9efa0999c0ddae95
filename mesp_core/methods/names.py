"""What a method may be called: `NAME[:option[=value]…]`. The same string is its key in results. Loads no MLX."""

import re
from dataclasses import dataclass

from mesp_core.errors import UsageError
from mesp_core.methods.record import FLAG, SIZE, Record
from mesp_core.methods.registry import METHODS

Value = str | bool | int | None

RENAMED = {"checkpoints": "inputs"}  # options that were called otherwise; a checkpoint is a model on disk

_UNITS = {"KB": 1024, "MB": 1024**2, "GB": 1024**3}
_LARGEST_SIZE = 2**60


@dataclass(frozen=True)
class MethodSpec:
    """A parsed method string. `options` are those given; a size is a number of bytes."""

    key: str
    name: str
    options: dict[str, Value]

    @property
    def record(self) -> Record:
        """What is said of the method itself."""
        return METHODS[self.name]

    def option(self, name: str) -> Value:
        """What an option of this method is, given or not: a flag is a bool, a size an int of bytes or None.

        Raises:
            KeyError: if the method has no such option.
        """
        values = self.record.options[name]
        default = {FLAG: False, SIZE: None}.get(values, values[0])
        return self.options.get(name, default)

    def all_options(self) -> dict[str, Value]:
        """Every option of the method. Two specs of one name with the same options are the same run."""
        return {name: self.option(name) for name in self.record.options}


def parse_size(text: str) -> int:
    """The bytes of a size such as `450MB`, `1.5 GB` or `900000kb`; MB is 1024·1024.

    Raises:
        UsageError: for what is none, a number without a unit among it.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMG]B)", text.strip(), re.IGNORECASE | re.ASCII)
    size = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not 1 <= size <= _LARGEST_SIZE:
        raise UsageError(f"{text!r} is not a size; give a number above 0 with KB, MB or GB behind it, for example 450MB.")
    return round(size)


def parse_method(text: str) -> MethodSpec:
    """Parse `NAME[:option[=value]…]`.

    Raises:
        UsageError: for an unknown name, option or value, naming what is allowed, or options that do not go together.
    """
    name, *parts = text.strip().split(":")
    if name not in METHODS:
        raise UsageError(f"method: unknown name {name!r}; allowed are {', '.join(METHODS)}.")
    allowed = METHODS[name].options
    options: dict[str, Value] = {}
    for part in parts:
        option, has_value, value = part.partition("=")
        if option in RENAMED and RENAMED[option] in allowed:
            raise UsageError(f"method {text!r}: the option {option!r} is called {RENAMED[option]!r} now.")
        if option not in allowed:
            raise UsageError(f"method {text!r}: {name} has no option {option!r}; it has {', '.join(allowed)}.")
        if option in options:
            raise UsageError(f"method {text!r}: the option {option!r} is given twice.")
        options[option] = _parse_value(text, allowed[option], option, value, bool(has_value))
    spec = MethodSpec(text.strip(), name, options)
    if "tmpfs" in options and spec.option("inputs") != "disk":
        raise UsageError(
            f"method {text!r}: tmpfs is about the scratch file of inputs=disk; add that option or leave tmpfs out."
        )
    return spec


def _parse_value(text: str, allowed: str | tuple[str, ...], option: str, value: str, has_value: bool) -> Value:
    if allowed == FLAG:
        if has_value:
            raise UsageError(f"method {text!r}: the option {option!r} takes no value.")
        return True
    if allowed == SIZE:
        try:
            return parse_size(value)
        except UsageError as error:
            raise UsageError(f"method {text!r}: {option}={error}") from None
    if value not in allowed:
        raise UsageError(f"method {text!r}: {option}={value!r}; allowed are {', '.join(allowed)}.")
    return value


def parse_methods(text: str) -> tuple[MethodSpec, ...]:
    """Parse a comma-separated list of methods; each may stand once, however it is written.

    Raises:
        UsageError: as `parse_method`, and for none, or two that are the same run.
    """
    specs = tuple(parse_method(part) for part in text.split(",") if part.strip())
    if not specs:
        raise UsageError("methods: none given; name at least one, for example mebp,mesp.")
    for i, spec in enumerate(specs):
        for other in specs[:i]:
            if (spec.name, spec.all_options()) == (other.name, other.all_options()):
                raise UsageError(f"methods: {other.key!r} is named twice{_why_the_same(spec, other)}.")
    return specs


def _why_the_same(spec: MethodSpec, other: MethodSpec) -> str:
    """Two specs that mean the same -> why that is, "" where anybody sees it."""
    if spec.key == other.key:
        return ""
    given = spec.options | other.options
    defaults = [f"{name}={given[name]}" for name in spec.options.keys() ^ other.options.keys()]
    because = f" ({', '.join(sorted(defaults))} goes without saying)" if defaults else ""
    return f": {spec.key!r} is the same run{because}"


def folder_name(key: str) -> str:
    """A method's folder below --out. A colon is a path separator in the Finder, so options are joined by a hyphen.

    Keys of different runs give folders that differ, on file systems that take capitals for small letters, too.
    """
    return key.replace(":", "-")
