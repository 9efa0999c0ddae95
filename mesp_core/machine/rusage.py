"""What macOS says of a process: `proc_pid_rusage` of libSystem and the struct that it fills. Knows nothing of a meter."""

import ctypes
import os
import struct

FLAVOR = 4  # RUSAGE_INFO_V4

# rusage_info_v4 as XNU's bsd/sys/resource.h lays it out, without the prefix ri_: the uuid of 16 bytes, then a uint64 each.
UUID_BYTES = 16
FIELDS = (
    "user_time",
    "system_time",
    "pkg_idle_wkups",
    "interrupt_wkups",
    "pageins",
    "wired_size",
    "resident_size",
    "phys_footprint",
    "proc_start_abstime",
    "proc_exit_abstime",
    "child_user_time",
    "child_system_time",
    "child_pkg_idle_wkups",
    "child_interrupt_wkups",
    "child_pageins",
    "child_elapsed_abstime",
    "diskio_bytesread",
    "diskio_byteswritten",
    "cpu_time_qos_default",
    "cpu_time_qos_maintenance",
    "cpu_time_qos_background",
    "cpu_time_qos_utility",
    "cpu_time_qos_legacy",
    "cpu_time_qos_user_initiated",
    "cpu_time_qos_user_interactive",
    "billed_system_time",
    "serviced_system_time",
    "logical_writes",
    "lifetime_max_phys_footprint",
    "instructions",
    "cycles",
    "billed_energy",
    "serviced_energy",
    "interval_max_phys_footprint",
    "runnable_time",
)
SIZE = UUID_BYTES + 8 * len(FIELDS)


def offset(field: str) -> int:
    """The byte at which a field of FIELDS begins."""
    return UUID_BYTES + 8 * FIELDS.index(field)


def parse(buffer: bytes) -> dict[str, int]:
    """The fields of a `rusage_info_v4` by name. Raises ValueError unless it is 296 bytes long."""
    if len(buffer) != SIZE:
        raise ValueError(f"a rusage_info_v4 is {SIZE} bytes long, not {len(buffer)}")
    return dict(zip(FIELDS, struct.unpack_from(f"={len(FIELDS)}Q", buffer, UUID_BYTES), strict=True))


class LibSystem:
    """The two calls. `library` is libSystem, or in tests something with functions of the same names."""

    def __init__(self, library: object | None = None) -> None:
        self._library = library or ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)

    def rusage(self, pid: int) -> dict[str, int]:
        """A process's figures of now.

        Raises:
            ProcessLookupError: if there is no such process.
            OSError: what else errno says.
        """
        buffer = ctypes.create_string_buffer(SIZE)
        if self._library.proc_pid_rusage(pid, FLAVOR, buffer) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), f"process {pid}")  # ESRCH makes it a ProcessLookupError
        return parse(buffer.raw)

    def reset_footprint_interval(self, pid: int) -> bool:
        """Set `interval_max_phys_footprint` to 0; from the next change of the footprint on it is the largest one.

        False where the system has no such call, or refuses it: it is in no public header.
        """
        reset = getattr(self._library, "proc_reset_footprint_interval", None)
        return reset is not None and reset(pid) == 0
