"""What `mesp doctor` prints of findings that this machine does not have; test_cli.py runs it on those that it has."""

from mesp_core.commands.doctor import in_words

ON_A_MAC = {
    "machine": {
        "cpu": "Apple M3 Max",
        "system": "macOS",
        "release": "15.1",
        "python": "3.11.9",
        "packages": {"mlx": "0.32.4"},
        "low_power_mode": "on",
    },
    "memory": {"total_mb": 131072.0, "available_mb": 90000.0},
    "blas": "BLAS: the system's",
    "meter": "phys_footprint from proc_pid_rusage; peaks of a step and of a run are exact",
    "thermal_state": "nominal",
    "battery": {"percent": 80.0, "plugged": False},
    "device": "Device(gpu, 0)",
    "device_info": {
        "architecture": "applegpu_g15s",
        "memory_size": 128 * 2**30,
        "max_recommended_working_set_size": 96 * 2**30,
        "max_buffer_length": 72 * 2**30,
        "resource_limit": 499000,
    },
    "float32_gflops": 11000.0,
    "frozen_matmul": "quantized",
    "worker_footprint_after_import_mb": 30.0,
    "kernels": {},
    "speed": {
        "source": "measured",
        "wait_s": 180e-6,
        "submit_s": 8e-6,
        "launch_s": 2.75e-6,
        "quantized_forward": 4.1e12,
        "quantized_backward": 3.6e12,
        "products": 5.25e12,
        "dequantized": 6e10,
        "exponentials": 4e10,
        "elements": 5e10,
        "file_bytes": 2e10,
        "disk_bytes": 5.5e9,
    },
}


def test_a_macs_device_meter_and_power_mode_are_told():
    lines = in_words(ON_A_MAC)
    assert lines["MLX's device"] == (
        "architecture applegpu_g15s, memory_size 131,072 MB, max_recommended_working_set_size 98,304 MB, "
        "max_buffer_length 73,728 MB, resource_limit 499000"
    )
    assert lines["memory meter"] == ON_A_MAC["meter"]
    assert lines["low power mode"] == "on"


def test_how_fast_it_is():
    lines = in_words(ON_A_MAC)
    assert lines["speed"] == "measured, in the shapes of Qwen2.5-0.5B"
    assert lines["waiting"] == "180 µs for a blocking evaluation, 8 µs to hand work over, 2.75 µs a kernel"
    assert lines["products"] == "4,100 G multiply-adds/s quantised forward, 3,600 backward, 5,250 in float32"
    assert lines["files"] == "20 GB/s from a checkpoint's pages, 5.5 GB/s to and from a scratch file"
