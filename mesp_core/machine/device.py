"""The machine a run happens on: what it is, whether it is hot, whether it is plugged in, and its fast BLAS."""

import contextlib
import functools
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mesp_core.errors import UsageError
from mesp_core.files.user_path import user_path
from mesp_core.machine.memory import MB, machine_memory

UNKNOWN, ON, OFF = "unknown", "on", "off"

THERMAL_STATES = ("nominal", "fair", "serious", "critical")  # NSProcessInfoThermalState, in order

# Best first: with POSIX threads, with OpenMP, single-threaded. Debian and Ubuntu, Fedora, Arch.
_OPENBLAS_PLACES = (
    "usr/lib/*/openblas-pthread/libblas.so.3",
    "usr/lib/*/openblas-openmp/libblas.so.3",
    "usr/lib/*/openblas-serial/libblas.so.3",
    "usr/lib64/libopenblasp.so.0",
    "usr/lib64/libopenblaso.so.0",
    "usr/lib64/libopenblas.so.0",
    "usr/lib/libopenblas.so",
)


@dataclass(frozen=True)
class Battery:
    """`percent` is 0 to 100; both are None where there is no battery or the system does not say."""

    percent: float | None
    plugged: bool | None


def describe_machine() -> dict[str, object]:
    """The machine and the software, ready for JSON; what cannot be found out is "unknown"."""
    import psutil

    system = platform.system()
    return {
        "system": "macOS" if system == "Darwin" else system or UNKNOWN,
        "release": platform.mac_ver()[0] or platform.release() or UNKNOWN,
        "machine": platform.machine() or UNKNOWN,
        "cpu": chip_name(),
        "physical_cores": psutil.cpu_count(logical=False) or UNKNOWN,
        "logical_cores": psutil.cpu_count() or UNKNOWN,
        "low_power_mode": low_power_mode(),
        "memory_total_mb": round(machine_memory()[0] / MB),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("mlx", "mlx-lm", "mesp")},
    }


def thermal_state() -> str:
    """How hot macOS says the machine is: nominal, fair, serious or critical; unknown elsewhere."""
    process_info = _ns_process_info()
    try:
        return UNKNOWN if process_info is None else THERMAL_STATES[int(process_info.processInfo().thermalState())]
    except Exception:  # a broken pyobjc, a state Apple adds later: never worth failing a run for
        return UNKNOWN


def low_power_mode() -> str:
    """Whether macOS slows the machine down to save energy, which makes steps take longer: on or off; unknown elsewhere."""
    process_info = _ns_process_info()
    if process_info is None:
        return UNKNOWN
    try:
        return ON if process_info.processInfo().isLowPowerModeEnabled() else OFF
    except Exception:  # a broken pyobjc, a macOS before 12: never worth failing a run for
        return UNKNOWN


@functools.cache
def _ns_process_info() -> Any:
    """Foundation's NSProcessInfo; None without pyobjc, which is then not looked for again: that takes a while each time."""
    try:
        from Foundation import NSProcessInfo
    except Exception:
        return None
    return NSProcessInfo


def battery() -> Battery:
    """The battery's state of now."""
    import psutil

    try:
        state = psutil.sensors_battery()
    except Exception:  # missing on some systems, and it raises in some containers and virtual machines
        state = None
    return Battery(None, None) if state is None else Battery(float(state.percent), state.power_plugged)


def find_openblas(root: Path = Path("/"), own_binary: Path = Path(sys.executable)) -> Path | None:
    """The OpenBLAS to preload into a worker on Linux; None on other systems or when there is none.

    The environment variable MESP_BLAS may name the file to use instead, or be "none". Libraries built for another
    kind of processor than `own_binary` are passed over. Raises UsageError when MESP_BLAS names a file that cannot
    be loaded.
    """
    if sys.platform != "linux":
        return None
    wanted = os.environ.get("MESP_BLAS", "").strip()
    if wanted.lower() == "none":
        return None
    own_kind = _elf_kind(own_binary)
    if wanted:
        path = user_path(wanted)
        if not path.is_file():
            raise UsageError(f'MESP_BLAS names {path}, which is not a file. Name a BLAS library, or "none".')
        if own_kind and _elf_kind(path) != own_kind:
            raise UsageError(f'MESP_BLAS names {path}, which is no library for this processor. Name another, or "none".')
        return path
    for pattern in _OPENBLAS_PLACES:
        for path in sorted(root.glob(pattern)):
            kind = _elf_kind(path)
            if kind and kind == (own_kind or kind):
                return path
    return None


def _elf_kind(path: Path) -> bytes | None:
    """Word size, byte order and processor of an ELF file as in its header; None if it is not a readable ELF file."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return None
    if len(header) < 20 or not header.startswith(b"\x7fELF"):
        return None
    return header[4:6] + header[18:20]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def chip_name() -> str:
    """The processor's name, as the system says it."""
    name = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        elif sys.platform == "linux":
            # x86 has "model name" per core; some ARM boards name themselves once in "Model", others nowhere.
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
            found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
            name = found[1] if found else ""
    return name.strip() or platform.processor() or UNKNOWN
