"""What the panel describes: one configuration, the methods to compare on it, and in which order their steps go. No Qt."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_methods
from mesp_core.methods.registry import COMPARED
from mesp_core.settings.run_config import RunConfig


@dataclass(frozen=True)
class Experiment:
    """`methods` on `config`, whose own `method` is the first of them; `interleave`: in turn, a step of each."""

    config: RunConfig = field(default_factory=RunConfig)
    methods: tuple[str, ...] = COMPARED
    interleave: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for what is no configuration, no method, or a method named twice."""
        if not isinstance(self.config, RunConfig):
            raise UsageError(f"config: {self.config!r} is not a configuration.")
        if not isinstance(self.methods, tuple | list) or not all(isinstance(method, str) for method in self.methods):
            raise UsageError(f"methods: {self.methods!r} is not a list of names.")
        if not isinstance(self.interleave, bool):
            raise UsageError(f"interleave: {self.interleave!r} is not true or false.")
        keys = tuple(spec.key for spec in parse_methods(",".join(self.methods)))
        object.__setattr__(self, "methods", keys)
        object.__setattr__(self, "config", self.config.replace(method=keys[0]))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; `from_dict` gives back an equal experiment."""
        return {"config": self.config.to_dict(), "methods": list(self.methods), "interleave": self.interleave}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Experiment":
        """The inverse of `to_dict`; what is left out takes its default.

        Raises:
            UsageError: for what is no such dictionary, a setting that does not exist, or a wrong value.
        """
        known = [known.name for known in dataclasses.fields(cls)]
        if not isinstance(values, Mapping):
            raise UsageError(f"experiment: {values!r} is not an object with {', '.join(known)}.")
        for name in values:
            if name not in known:
                raise UsageError(f"experiment: there is no {name!r}; there are {', '.join(known)}.")
        values = dict(values)
        if "config" in values:
            if not isinstance(values["config"], Mapping):
                raise UsageError(f"config: {values['config']!r} is not an object.")
            values["config"] = RunConfig.from_dict(values["config"])
        return cls(**values)
