"""README is true: its commands stand as CI takes them, and its Python snippet runs as it is printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from mesp_core.commands.options import default_text
from mesp_core.methods.registry import METHODS
from mesp_core.models.architecture import PROJECTIONS
from mesp_core.settings.run_config import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_two_commands_stand_there_literally():
    run = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/mesp-gui"
    test = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest"
    assert run in README.splitlines()
    assert test in README.splitlines()


def test_the_training_loop_runs_as_printed(tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) > 1
    adapter = tmp_path / "my-adapter"
    assert (adapter / "adapters.safetensors").stat().st_size > 10_000
    parameters = json.loads((adapter / "adapter_config.json").read_text())["lora_parameters"]
    assert parameters["rank"] == 4 and parameters["scale"] == 4.0
    assert len(parameters["keys"]) == len(PROJECTIONS)


def test_every_picture_is_there():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")


def test_every_shortcut_of_the_window_is_listed(qapp):
    from PySide6.QtWidgets import QMainWindow

    from app.actions import Actions

    window = QMainWindow()
    actions = Actions(window)
    for name in ("run", "stop", "open", "open_model", "export_adapter", "export_results", "show_folder", "settings"):
        shortcut = getattr(actions, name).shortcut().toString()
        assert shortcut and re.search(rf"{re.escape(shortcut)}[ ,|]", README), name


def test_every_method_is_explained():
    for name in METHODS:
        assert f"| `{name}` |" in README


def test_no_placeholder_is_left():
    assert "@@" not in README
    assert "completion" in SETTINGS["loss_on"].choices and "--loss-on completion" in README


def rows_of_options():
    """The lines of the table of all options, as the settings declare them."""
    rows = ["| option | default | what it is | values |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = default_text(setting) if setting.empty else f"`{default_text(setting)}`"
        rows.append(f"| `{setting.flag}` | {default} | {setting.help} | {setting.allowed} |")
    return rows


def test_the_table_of_options_is_what_the_settings_declare():
    table = "\n".join(rows_of_options())
    section = README.split("## All options of a run\n", 1)[-1].split("\n## ", 1)[0]
    there = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    assert there == table, f"README.md, All options of a run: put this table there:\n{table}"
