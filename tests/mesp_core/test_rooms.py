"""The rooms of mesp_core and their floors, read from the imports themselves: see mesp_core/README.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mesp_core

ROOT = Path(__file__).resolve().parents[2]

# From the top down: a room imports only from rooms that stand after it.
FLOORS = (
    "commands",
    "bench",
    "training",
    "runs",
    "adapters",
    "planner",
    "settings",
    "methods",
    "engine",
    "lifetimes",
    "weights",
    "data",
    "models",
    "processes",
    "machine",
    "files",
    "ops",
    "device",
)
# Rooms whose every file can be imported, and used, where there is no MLX.
WITHOUT_MLX = (
    "commands",
    "runs",
    "planner",
    "settings",
    "methods",
    "lifetimes",
    "data",
    "models",
    "processes",
    "machine",
    "files",
)
NEED_MLX_LM = ("data/tokenizer.py", "engine/peer.py")


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(file):
    """Full names of what `file` imports, wherever in it: at its top, or within a function when it is called."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports_package(file, package):
    return any(name.split(".")[0] == package for name in imports(file))


def room(file):
    return file.relative_to(ROOT / "mesp_core").parts[0]


def rooms_imported(file):
    parts = (name.split(".") for name in imports(file))
    return {part[1] for part in parts if part[0] == "mesp_core" and len(part) > 1}


ROOM_FILES = [file for file in modules("mesp_core") if file.parent != ROOT / "mesp_core"]


def test_every_room_has_a_floor():
    assert {room(file) for file in ROOM_FILES} == set(FLOORS)


@pytest.mark.parametrize("name", FLOORS)
def test_no_room_imports_from_a_room_above_it(name):
    below = set(FLOORS[FLOORS.index(name) :])
    for file in ROOM_FILES:
        if room(file) == name:
            upward = rooms_imported(file) - below - {"errors", "__version__"}
            assert not upward, f"{file.relative_to(ROOT)} imports from {upward}"


def test_at_the_top_of_the_package_stand_its_door_its_version_and_its_errors():
    top = {file.name for file in (ROOT / "mesp_core").glob("*.py")}
    assert top == {"__init__.py", "__main__.py", "errors.py"}
    assert not rooms_imported(ROOT / "mesp_core" / "errors.py")


def test_ops_and_the_device_below_them_import_nothing_but_mlx():
    allowed = set(sys.stdlib_module_names) | {"mlx", "numpy"}
    for room_name in ("ops", "device"):
        for file in modules(f"mesp_core/{room_name}"):
            others = {name for name in imports(file) if name.split(".")[0] not in allowed}
            assert all(name.split(".")[1] in ("ops", "device") for name in others), f"{file.name} imports {others}"


@pytest.mark.parametrize("name", WITHOUT_MLX)
def test_rooms_that_plan_prepare_and_show_import_no_mlx(name):
    for file in modules(f"mesp_core/{name}"):
        assert not imports_package(file, "mlx"), file


def test_only_the_tokenizer_and_what_is_compared_with_it_need_mlx_lm():
    """mlx-lm loads MLX: whoever imports it stands in a process that has it, or in the child that tokenises."""
    users = {str(file.relative_to(ROOT / "mesp_core")) for file in modules("mesp_core") if imports_package(file, "mlx_lm")}
    assert users == set(NEED_MLX_LM)


def test_the_window_never_imports_mlx_and_the_core_never_imports_qt():
    for file in modules("app"):
        assert not imports_package(file, "mlx"), file
    for file in modules("mesp_core"):
        for package in ("PySide6", "pyqtgraph", "app"):
            assert not imports_package(file, package), file


def test_importing_all_that_shows_plans_and_prepares_loads_neither_mlx_nor_qt():
    """What is imported counts with what it imports itself; importing inside functions is for whoever calls them."""
    files = [file for name in WITHOUT_MLX for file in modules(f"mesp_core/{name}")]
    names = [str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for file in files]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    code += "print(sorted({'mlx', 'mlx_lm', 'transformers', 'PySide6'} & {m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_what_is_offered_by_name_is_there_and_costs_nothing_before_it_is_asked_for():
    code = """
import sys, mesp_core
assert not {"mlx", "numpy"} & set(sys.modules)
assert mesp_core.plan and mesp_core.compare and "mlx" not in sys.modules
assert set(mesp_core.__all__) == set(dir(mesp_core))
for name in mesp_core.__all__:
    assert getattr(mesp_core, name).__class__ and name
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mesp_core.nothing  # noqa: B018
