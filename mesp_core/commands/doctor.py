"""The command `mesp doctor`. What it needs is imported when it runs."""

import argparse
from typing import Any

from mesp_core.commands.command import Commands, add_command
from mesp_core.commands.terminal import Terminal
from mesp_core.machine.memory import MB


def add(commands: Commands) -> None:
    """Add the command."""
    add_command(commands, "doctor", run, "say what device, BLAS, kernels and memory meter are in use")


def run(options: argparse.Namespace) -> int:
    """Examine the machine and print what was found; returns 0.

    Raises:
        MespError: if MLX cannot be run at all.
    """
    from mesp_core.bench.doctor import examine

    with Terminal(options.json) as terminal:
        findings = examine(terminal.note)
        if terminal.as_json:
            terminal.json({"event": "doctor", **findings})
            return 0
        lines = in_words(findings)
        width = max(map(len, lines))
        for name, value in lines.items():
            terminal.say(f"{name:<{width}}  {value}")
    return 0


def in_words(findings: dict[str, Any]) -> dict[str, str]:
    """What was found, a line each."""
    machine = findings["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    memory, battery = findings["memory"], findings["battery"]
    percent = "unknown" if battery["percent"] is None else f"{battery['percent']:.0f} %"
    lines = {
        "machine": f"{machine['cpu']}, {machine['system']} {machine['release']}",
        "versions": f"Python {machine['python']}, {packages}",
        "memory": f"{memory['total_mb']:.0f} MB, {memory['available_mb']:.0f} MB available",
        "device": f"{findings['device']}, {findings['float32_gflops']:.0f} GFLOP/s in a float32 matmul",
        "MLX's device": ", ".join(_figure(name, value) for name, value in findings["device_info"].items()),
        "blas": findings["blas"].removeprefix("BLAS: "),
        "frozen matmul": findings["frozen_matmul"],
        "memory meter": findings["meter"],
        "worker at start": f"{findings['worker_footprint_after_import_mb']:.0f} MB with MLX imported",
        "thermal state": findings["thermal_state"],
        "low power mode": machine["low_power_mode"],
        "battery": percent,
    }
    lines |= _speed(findings["speed"])
    for kind, verdict in findings["kernels"].items():
        lines[f"quantized_matmul {kind}"] = (
            f"{verdict['quantized_matmul']} "
            f"(relative error {verdict['forward_error']:.0e} forward, {verdict['backward_error']:.0e} backward)"
        )
    return lines


def _figure(name: str, value: str | int) -> str:
    """One of MLX's figures of a device in words; sizes are in bytes."""
    if name.endswith(("_size", "_length", "_memory")) and isinstance(value, int):
        return f"{name} {value / MB:,.0f} MB"
    return f"{name} {value}"


def _speed(speed: dict[str, Any]) -> dict[str, str]:
    """The figures by which the planner foretells time, in shapes of Qwen2.5-0.5B."""
    products = {name: f"{speed[name] / 1e9:,.4g}" for name in ("quantized_forward", "quantized_backward", "products")}
    return {
        "speed": f"{speed['source']}, in the shapes of Qwen2.5-0.5B",
        "waiting": f"{speed['wait_s'] * 1e6:.3g} µs for a blocking evaluation, {speed['submit_s'] * 1e6:.3g} µs to hand "
        f"work over, {speed['launch_s'] * 1e6:.3g} µs a kernel",
        "products": f"{products['quantized_forward']} G multiply-adds/s quantised forward, {products['quantized_backward']} "
        f"backward, {products['products']} in float32",
        "elements": f"{speed['dequantized'] / 1e9:.3g} G/s dequantised, {speed['exponentials'] / 1e9:.3g} G/s "
        f"exponentials, {speed['elements'] / 1e9:.3g} G/s elementwise",
        "files": f"{speed['file_bytes'] / 1e9:.3g} GB/s from a checkpoint's pages, {speed['disk_bytes'] / 1e9:.3g} GB/s to "
        "and from a scratch file",
    }
