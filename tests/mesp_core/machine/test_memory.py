from mesp_core.machine.memory import MB, machine_memory


def test_machine_memory_is_in_bytes():
    total, available = machine_memory()
    assert 256 * MB < available <= total < 2**50
