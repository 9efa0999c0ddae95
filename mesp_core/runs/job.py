"""The one line that a worker is given. Loads no MLX."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mesp_core.settings.run_config import RunConfig


@dataclass(frozen=True)
class Job:
    """What a worker is given: the configuration, and where the session put or found things."""

    config: RunConfig
    model_folder: Path
    tokens_folder: Path
    adapter_folder: Path

    def to_json(self) -> str:
        """One line."""
        paths = {name: str(value) for name, value in asdict(self).items() if name != "config"}
        return json.dumps({"config": self.config.to_dict(), **paths})

    @classmethod
    def from_json(cls, line: str) -> "Job":
        """The inverse of `to_json`."""
        values = json.loads(line)
        config = RunConfig.from_dict(values.pop("config"))
        return cls(config, **{name: Path(value) for name, value in values.items()})
