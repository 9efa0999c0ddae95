"""The options that say what a run is, as the settings declare them, and the configuration they make."""

import argparse
import os
from pathlib import Path

from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_method, parse_size
from mesp_core.methods.registry import METHODS
from mesp_core.settings.run_config import PRESETS, SETTINGS, RunConfig, preset
from mesp_core.settings.setting import Setting


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# Each command says in its own way which methods it takes.
RUN_SETTINGS = {name: setting for name, setting in SETTINGS.items() if name != "method"}
# kind -> what makes the value of a text that was typed, and what stands for the value in the help
_TYPES = {
    "whole": (int, "N"),
    "real": (float, "X"),
    "choice": (str, None),
    "text": (str, "TEXT"),
    "names": (_names, "NAMES"),
}


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """An option for every setting that is not the method."""
    parser.add_argument("--preset", choices=list(PRESETS), default="first-run", help="where the defaults come from")
    for name, setting in RUN_SETTINGS.items():
        typed, metavar = _TYPES[setting.kind]
        choices = list(setting.choices) if setting.kind == "choice" else None
        parser.add_argument(setting.flag, dest=name, type=typed, choices=choices, metavar=metavar, help=help_text(setting))


def help_text(setting: Setting) -> str:
    """What a setting is and what it is unless it is given."""
    return f"{setting.help} (default{':' if setting.empty else ''} {default_text(setting)})"


def default_text(setting: Setting) -> str:
    """The default as it would be typed; in words where nothing is."""
    return ",".join(setting.default) if setting.kind == "names" else str(setting.default) or setting.empty


def typed_path(text: str) -> Path:
    """The path that was typed, `~` being home; shown as it was typed otherwise."""
    return Path(os.path.expanduser(text))


def config_of(options: argparse.Namespace, **changes: str) -> RunConfig:
    """The preset with what was given on top.

    Raises:
        UsageError: for a wrong value. Whoever typed an option wants it named beside the setting that is refused.
    """
    given = {name: getattr(options, name) for name in RUN_SETTINGS if getattr(options, name) is not None}
    try:
        return preset(options.preset, **given, **changes)
    except UsageError as error:
        field, colon, rest = str(error).partition(":")
        if field not in RUN_SETTINGS:
            raise
        flag = RUN_SETTINGS[field].flag
        name = flag if flag == f"--{field}" else f"{flag} ({field})"
        raise UsageError(f"{name}{colon}{rest}") from None


def with_budget(method: str | None, budget: str) -> str:
    """A method that can have a budget (None: the first there is), and what `--budget` names, as one method.

    Raises:
        UsageError: if the budget is no size, the method is another or has a budget of its own.
    """
    try:
        parse_size(budget)
    except UsageError as error:
        raise UsageError(f"--budget: {error}") from None
    able = [name for name, record in METHODS.items() if record.has_budget]
    spec = parse_method(able[0] if method is None else method)
    if not spec.record.has_budget:
        names = " or ".join(able)
        raise UsageError(
            f"--budget: only {names} works within a budget, not {spec.key!r}. Name {names}, or leave --budget out."
        )
    if "budget" in spec.options:
        raise UsageError(f"--budget: {spec.key!r} has a budget of its own; leave one of the two out.")
    return f"{spec.key}:budget={budget.replace(' ', '')}"
