"""What all tests share: depth-first MLX, a cache folder of their own, real checkpoints and data where they are, jobs."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Read by MLX at its first evaluation: depth first, as in the worker, so that peaks are those of a run.
os.environ.setdefault("MLX_BFS_MAX_WIDTH", "1")
# No window flickers over the screen of whoever runs the tests.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

# Whoever runs the tests in the background may have signals ignored, which children inherit, and mesp then respects.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent
# Files that take two seconds or more: they start processes, train, or show the whole window. All else takes a minute.
SLOW = {
    "test_allocator_peaks",
    "test_bench_lean",
    "test_cli",
    "test_cli_out",
    "test_cli_preparing",
    "test_cli_runs",
    "test_cli_terminal",
    "test_comparison",
    "test_data_tab",
    "test_entry_point",
    "test_experiment_panel",
    "test_gradient_check",
    "test_handing_out",
    "test_lean",
    "test_lean_faults",
    "test_lean_held",
    "test_lean_memory",
    "test_machine_figures",
    "test_memory_bars",
    "test_non_finite",
    "test_open_files",
    "test_panel_files",
    "test_panel_preparing",
    "test_partial_update",
    "test_plan",
    "test_plan_line",
    "test_plot_panel",
    "test_preview",
    "test_real_checkpoint",
    "test_responsiveness",
    "test_same_ids_as_mlx_lm",
    "test_session",
    "test_session_faults",
    "test_steps_tab",
    "test_talk",
    "test_token_cache",
    "test_tokenise",
    "test_train",
    "test_train_breaking_off",
    "test_turns",
    "test_update_as_you_go",
    "test_window",
    "test_window_parts",
}


def pytest_collection_modifyitems(items):
    """Mark what is slow, so that `pytest -m "not slow"` is what one runs after every change."""
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """MESP_CACHE_DIR for this process and its children: the user's cache is neither read nor written."""
    before = os.environ.get("MESP_CACHE_DIR")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["MESP_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["MESP_CACHE_DIR"]
    else:
        os.environ["MESP_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def smollm2():
    """The folder of a pretrained SmolLM2-135M in mlx-community layout."""
    named = os.environ.get("MESP_SMOLLM2")
    if not named:
        pytest.skip(
            "needs a real checkpoint: make one with `python ../shared/tools/fetch_smollm2.py OUT` and set MESP_SMOLLM2=OUT"
        )
    return Path(named)


@pytest.fixture(scope="session")
def wikitext2():
    """WikiText-2's test split as chat rows."""
    file = ROOT.parent / "shared" / "data" / "wikitext2.jsonl"
    if not file.is_file():
        pytest.skip(f"needs {file}: make it with `mesp data wikitext2 --out {file}`")
    return file


@pytest.fixture(scope="session")
def small_config():
    """small_config(**changes) -> a configuration whose steps take a tenth of a second on tiny: rank 4, 32 tokens."""
    from mesp_core.settings.run_config import preset

    def make(**changes):
        return preset("first-run", **{"rank": 4, "seq_len": 32, "steps": 4} | changes)

    return make


@pytest.fixture
def make_job(small_config, tmp_path):
    """make_job(**changes) -> the job of one run; its adapter goes to tmp_path/out/METHOD/adapter."""
    from mesp_core.methods.names import folder_name
    from mesp_core.runs.job import Job
    from mesp_core.runs.prepare import prepare

    def make(**changes):
        config = small_config(**changes)
        prepared = prepare(config)
        adapter = tmp_path / "out" / folder_name(config.method) / "adapter"
        return Job(config, prepared.source.path, prepared.tokens.path, adapter)

    return make


@pytest.fixture
def tiny_copy(tmp_path):
    """A copy of the tiny checkpoint that a test may damage."""
    import shutil

    from mesp_core.files.bundled import bundled_path

    return Path(shutil.copytree(bundled_path("tiny"), tmp_path / "model"))


@pytest.fixture(scope="session")
def command():
    """The command line as a list, and the environment in which it finds this package from any working directory."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return [sys.executable, "-m", "mesp_core"], environment


@pytest.fixture
def mesp(command, tmp_path):
    """mesp(*arguments, python_path=None) -> the finished process, run in tmp_path/cwd (mesp.cwd)."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()

    def run(*arguments, python_path=None):
        start, environment = command
        if python_path:
            environment = environment | {"PYTHONPATH": os.pathsep.join([str(python_path), str(ROOT)])}
        return subprocess.run(
            [*start, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )

    run.cwd = cwd
    return run


@pytest.fixture
def started(command, tmp_path):
    """started(*arguments, **as Popen's) -> a running process of the command line in tmp_path; all end with the test."""
    processes = []

    def start(*arguments, env=None, **options):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*command[0], *map(str, arguments)],
            cwd=tmp_path,
            env=command[1] | (env or {}),
            text=True,
            **streams | options,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def in_shell(command, tmp_path):
    """in_shell(text) -> the finished process; `mesp` in the text is the command line."""

    def run(text):
        function = f'mesp() {{ {shlex.join(command[0])} "$@"; }}'
        return subprocess.run(
            ["bash", "-c", f"{function}\n{text}"], cwd=tmp_path, env=command[1], capture_output=True, text=True, timeout=180
        )

    return run


@pytest.fixture(scope="session")
def strict_json():
    """strict_json(text) -> its value; NaN and Infinity, which only Python reads, are no JSON."""

    def refuse(name):
        raise AssertionError(f"not JSON: {name}")

    return lambda text: json.loads(text, parse_constant=refuse)
