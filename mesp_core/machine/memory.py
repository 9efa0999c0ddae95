"""The machine's memory, and the unit that memory is given in."""

MB = 1024 * 1024


def machine_memory() -> tuple[int, int]:
    """The machine's memory in bytes: (total, available without swapping)."""
    import psutil  # not at the top: a worker needs only the unit

    memory = psutil.virtual_memory()
    return memory.total, memory.available
