import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from mesp_core.errors import UsageError
from mesp_core.machine import device
from mesp_core.machine.device import Battery, battery, describe_machine, find_openblas, low_power_mode, thermal_state

# --- the machine ---


def test_describe_machine_is_json_and_true():
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["machine"] == platform.machine()
    assert machine["python"] == platform.python_version()
    assert machine["logical_cores"] == os.cpu_count()
    assert machine["memory_total_mb"] == pytest.approx(psutil.virtual_memory().total / 2**20, abs=1)
    assert machine["packages"]["mlx"] == metadata.version("mlx")
    assert all(machine[name] for name in ("system", "release", "cpu", "physical_cores"))


def test_what_cannot_be_found_out_is_unknown(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: None)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "")
    monkeypatch.setattr(sys, "platform", "plan9")
    machine = describe_machine()
    assert machine["packages"] == {"mlx": "unknown", "mlx-lm": "unknown", "mesp": "unknown"}
    assert all(machine[name] == "unknown" for name in ("cpu", "machine", "physical_cores", "logical_cores"))


def test_cpu_name_on_macos(monkeypatch):
    def run(command, **options):
        assert command == ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return SimpleNamespace(stdout="Apple M3 Pro\n")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert describe_machine()["cpu"] == "Apple M3 Pro"


def test_macos_goes_by_its_own_name_and_version(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
    machine = describe_machine()
    assert (machine["system"], machine["release"]) == ("macOS", "15.1")


def test_describing_imports_no_mlx():
    code = (
        "import sys; from mesp_core.machine.device import describe_machine; describe_machine(); print('mlx' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


# --- heat and power ---


def set_process_info(monkeypatch, **answers):
    foundation = ModuleType("Foundation")
    info = SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in answers.items()})
    foundation.NSProcessInfo = SimpleNamespace(processInfo=lambda: info)
    monkeypatch.setitem(sys.modules, "Foundation", foundation)


@pytest.fixture(autouse=True)
def look_for_pyobjc_again():
    device._ns_process_info.cache_clear()
    yield
    device._ns_process_info.cache_clear()


@pytest.mark.parametrize(
    ("state", "word"), [(0, "nominal"), (1, "fair"), (2, "serious"), (3, "critical"), (4, "unknown"), (None, "unknown")]
)
def test_thermal_states(monkeypatch, state, word):
    set_process_info(monkeypatch, thermalState=state)
    assert thermal_state() == word


@pytest.mark.parametrize(
    ("answers", "word"), [({"isLowPowerModeEnabled": 1}, "on"), ({"isLowPowerModeEnabled": 0}, "off"), ({}, "unknown")]
)
def test_low_power_mode(monkeypatch, answers, word):
    set_process_info(monkeypatch, **answers)
    assert low_power_mode() == word == describe_machine()["low_power_mode"]


def test_heat_and_power_without_pyobjc(monkeypatch):
    monkeypatch.setitem(sys.modules, "Foundation", None)
    assert thermal_state() == low_power_mode() == "unknown"


def test_a_pyobjc_that_is_not_there_is_looked_for_once(monkeypatch):
    looked = []

    class Finder:
        def find_spec(self, name, *_):
            if name == "Foundation":
                looked.append(name)

    monkeypatch.delitem(sys.modules, "Foundation", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder()])
    assert [thermal_state() for _ in range(3)] == ["unknown"] * 3
    assert looked == ["Foundation"]


# --- battery ---


def fail(*args):
    raise FileNotFoundError("/sys/class/power_supply")


@pytest.mark.parametrize(
    ("sensors_battery", "expected"),
    [
        (lambda: SimpleNamespace(percent=80, secsleft=1, power_plugged=False), Battery(80.0, False)),
        (lambda: SimpleNamespace(percent=100, secsleft=-2, power_plugged=True), Battery(100.0, True)),
        (lambda: SimpleNamespace(percent=55.5, secsleft=-1, power_plugged=None), Battery(55.5, None)),
        (lambda: None, Battery(None, None)),
        (fail, Battery(None, None)),
    ],
)
def test_battery(monkeypatch, sensors_battery, expected):
    monkeypatch.setattr(psutil, "sensors_battery", sensors_battery, raising=False)
    assert battery() == expected


def test_battery_where_psutil_has_no_such_function(monkeypatch):
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert battery() == Battery(None, None)


# --- OpenBLAS ---

X86_64, AARCH64, I386 = (2, 62), (2, 183), (1, 3)


def elf(path, kind=X86_64):
    word_size, processor = kind
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b"\x7fELF" + bytes([word_size, 1, 1]) + bytes(9) + (3).to_bytes(2, "little")
    path.write_bytes(header + processor.to_bytes(2, "little") + bytes(44))
    return path


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The interpreter of an x86-64 Linux machine whose file system is under tmp_path."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("MESP_BLAS", raising=False)
    return elf(tmp_path / "usr/bin/python3")


IN_ORDER = [
    "usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
    "usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3",
    "usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3",
    "usr/lib64/libopenblasp.so.0",
    "usr/lib64/libopenblaso.so.0",
    "usr/lib64/libopenblas.so.0",
    "usr/lib/libopenblas.so",
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_best_openblas_wins(tmp_path, own, first):
    for place in IN_ORDER[first:]:
        elf(tmp_path / place)
    assert find_openblas(tmp_path, own) == tmp_path / IN_ORDER[first]


def test_no_openblas(tmp_path, own):
    elf(tmp_path / "usr/lib/x86_64-linux-gnu/blas/libblas.so.3")  # the reference BLAS
    assert find_openblas(tmp_path, own) is None


@pytest.mark.parametrize(("mine", "folder"), [(X86_64, "x86_64-linux-gnu"), (AARCH64, "aarch64-linux-gnu")])
def test_the_one_for_this_processor_is_taken(tmp_path, own, mine, folder):
    for name, kind in {"aarch64-linux-gnu": AARCH64, "i386-linux-gnu": I386, "x86_64-linux-gnu": X86_64}.items():
        elf(tmp_path / f"usr/lib/{name}/openblas-pthread/libblas.so.3", kind)
    elf(own, mine)
    assert find_openblas(tmp_path, own) == tmp_path / f"usr/lib/{folder}/openblas-pthread/libblas.so.3"


def test_other_processors_libraries_and_damaged_files_are_passed_over(tmp_path, own):
    elf(tmp_path / IN_ORDER[0], AARCH64)
    elf(tmp_path / IN_ORDER[3], I386)
    (tmp_path / IN_ORDER[5]).write_text("/* a linker script */")
    (tmp_path / IN_ORDER[4]).write_bytes(b"\x7fELF")
    assert find_openblas(tmp_path, own) is None


def test_a_dangling_link_is_passed_over(tmp_path, own):
    link = tmp_path / IN_ORDER[0]
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "removed")
    assert find_openblas(tmp_path, own) is None


def test_openblas_is_for_linux_only(tmp_path, own, monkeypatch):
    elf(tmp_path / IN_ORDER[0])
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_openblas(tmp_path, own) is None


@pytest.mark.parametrize("word", ["none", "None", " NONE "])
def test_mesp_blas_none(tmp_path, own, monkeypatch, word):
    elf(tmp_path / IN_ORDER[0])
    monkeypatch.setenv("MESP_BLAS", word)
    assert find_openblas(tmp_path, own) is None


def test_mesp_blas_names_a_file(tmp_path, own, monkeypatch):
    elf(tmp_path / IN_ORDER[0])
    mine = elf(tmp_path / "opt/libmyblas.so")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESP_BLAS", "opt/libmyblas.so")
    assert find_openblas(tmp_path, own) == mine


def test_an_empty_mesp_blas_is_as_if_unset(tmp_path, own, monkeypatch):
    elf(tmp_path / IN_ORDER[0])
    monkeypatch.setenv("MESP_BLAS", "")
    assert find_openblas(tmp_path, own) == tmp_path / IN_ORDER[0]


def test_mesp_blas_that_does_not_exist_is_refused(tmp_path, own, monkeypatch):
    monkeypatch.setenv("MESP_BLAS", str(tmp_path / "nowhere.so"))
    with pytest.raises(UsageError, match=r"MESP_BLAS.*nowhere\.so"):
        find_openblas(tmp_path, own)


@pytest.mark.parametrize("kind", [AARCH64, I386])
def test_mesp_blas_for_another_processor_is_refused(tmp_path, own, monkeypatch, kind):
    monkeypatch.setenv("MESP_BLAS", str(elf(tmp_path / "other.so", kind)))
    with pytest.raises(UsageError, match=r"other\.so.*processor"):
        find_openblas(tmp_path, own)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_what_is_found_here_can_be_preloaded(monkeypatch):
    monkeypatch.delenv("MESP_BLAS", raising=False)
    found = find_openblas()
    if found is None:
        pytest.skip("no OpenBLAS is installed")
    code = "import ctypes; ctypes.CDLL(None).cblas_sgemm"
    environment = {**os.environ, "LD_PRELOAD": str(found)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (loaded.returncode, loaded.stderr) == (0, "")
