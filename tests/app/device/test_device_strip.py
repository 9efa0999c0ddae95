"""The device strip, on recorded readings: levels, peaks, sums of interleaved workers, worst heat, battery used."""

import pytest
from PySide6.QtWidgets import QLabel

from app.device.monitor import DeviceMonitor, DeviceState, read_device
from app.device.strip import DeviceStrip, level_of
from mesp_core.machine.memory import MB
from mesp_core.runs import events

GB = 1024 * MB


@pytest.fixture
def readings():
    return [DeviceState(16 * GB, "nominal", 80.0, False)]


@pytest.fixture
def strip(readings, qtbot):
    monitor = DeviceMonitor(read=lambda: readings[-1])
    strip = DeviceStrip(monitor)
    qtbot.addWidget(strip)
    strip.resize(900, 40)
    strip.show()
    monitor.start()
    return strip


def text(strip, name):
    return strip.findChild(QLabel, name).text()


@pytest.mark.parametrize(("share", "level"), [(0.0, "good"), (0.499, "good"), (0.5, "warning"), (0.75, "bad"), (2.0, "bad")])
def test_levels(share, level):
    assert level_of(share) == level


def test_idle(strip):
    assert text(strip, "footprint") == "no worker of 16 GB"
    assert text(strip, "thermal") == "Thermal: nominal"
    assert text(strip, "battery") == "Battery: 80 %, on battery"


def test_now_and_peak(strip):
    strip.begin()
    strip.add_memory(events.Memory("mesp", 1.0, 9000.0))
    strip.add_memory(events.Memory("mesp", 2.0, 4096.0))
    assert text(strip, "footprint") == "4,096 MB, peak 9,000 MB of 16 GB"
    bar = strip.findChild(object, "memory_bar")
    assert bar.share == pytest.approx(0.25) and bar.level == "good"
    assert bar.peak == pytest.approx(9000 / 16384)
    strip.end_method("mesp")
    assert text(strip, "footprint") == "no worker, peak 9,000 MB of 16 GB"


def test_interleaved_workers_are_added_up(strip, make_step):
    strip.begin()
    strip.add_memory(events.Memory("mebp", 1.0, 5000.0))
    strip.add_memory(events.Memory("mesp", 1.0, 4000.0))
    assert text(strip, "footprint") == "9,000 MB, peak 9,000 MB of 16 GB"
    assert strip.findChild(object, "memory_bar").level == "warning"
    strip.add_step(make_step("mebp", footprint_peak_mb=6000.0))
    assert text(strip, "footprint") == "9,000 MB, peak 10,000 MB of 16 GB"


def test_the_worst_heat_and_the_battery_used_are_those_of_the_run(strip, readings):
    readings.append(DeviceState(16 * GB, "critical", 79.0, False))
    strip._monitor.poll()
    readings.append(DeviceState(16 * GB, "fair", 78.0, False))
    strip.begin()
    readings.append(DeviceState(16 * GB, "serious", 75.0, False))
    strip._monitor.poll()
    readings.append(DeviceState(16 * GB, "fair", 74.0, False))
    strip.end()
    readings.append(DeviceState(16 * GB, "critical", 30.0, False))  # long after it
    strip._monitor.poll()
    assert text(strip, "thermal") == "Thermal: critical (worst serious)"
    assert text(strip, "battery") == "Battery: 30 %, on battery, run used 4 %"


def test_no_battery(strip, readings):
    readings.append(DeviceState(16 * GB))
    strip.begin()
    assert text(strip, "battery") == "Battery: none"
    assert text(strip, "thermal") == "Thermal: unknown"


def test_the_bar_is_painted_in_its_level(strip):
    strip.begin()
    strip.add_memory(events.Memory("mesp", 1.0, 14000.0))
    bar = strip.findChild(object, "memory_bar")
    picture = bar.grab().toImage()
    filled = picture.pixelColor(picture.width() // 2, picture.height() // 2)
    assert filled.red() > 150 > filled.green() and filled.blue() < 100


def test_a_real_reading():
    state = read_device()
    assert state.memory_bytes > 256 * MB
    assert state.thermal in ("unknown", "nominal", "fair", "serious", "critical")
