"""Events: one JSON line each, and back."""

import json
import math

import pytest

from mesp_core.runs.events import EVENTS, Done, Error, Heartbeat, Loaded, Log, Memory, Saved, Step, parse_event

STEP = Step(
    method="mesp:weights=resident",
    step=3,
    loss=2.25,
    step_time_s=0.5,
    tokens=256,
    trained_tokens=200,
    learning_rate=1e-4,
    allocator_peak_mb=33.0,
    allocator_peak_by_phase_mb={"forward": 23.0, "loss": 33.0, "backward": 28.0},
)
ALL = [
    Loaded("mesp", "qwen2", 1000, 10, 4, "float32", "float32", "cpu", {"all": "dequantize"}, 12.5, 200),
    Loaded(
        "mesp",
        "llama",
        1000,
        10,
        None,
        "bfloat16",
        "float32",
        "gpu",
        {},
        12.5,
        200,
        {"architecture": "applegpu_g15s", "memory_size": 2**37},
    ),
    STEP,
    Step("mebp", 1, 9.0, 0.1, 8, 7, 1e-3, 5.0, {"all": 5.0}, 1.0, 2.0, 3.0, True, 8103.1, 80.0, "nominal", 77.0, 1.7e9),
    Memory("mebp", 1.25, 360.8),
    Log("mesp", "warning", 'wörter, "quotes" and\nlines'),
    Saved("mesp", 20, "runs/x/mesp/adapter"),
    Heartbeat("mesp", 10.0),
    Done("mesp", "finished", 20, "runs/x/mesp/adapter"),
    Done("mesp", "stopped", 0, None),
    Error("mesp", "checkpoint", "model.safetensors: truncated", 1, "Traceback …"),
    Error("mesp", "usage", "rank: 0", 2),
]


@pytest.mark.parametrize("event", ALL, ids=lambda event: event.event)
def test_to_one_line_and_back(event):
    line = event.to_json()
    assert "\n" not in line
    values = json.loads(line)
    assert list(values)[:2] == ["event", "method"]
    assert values["event"] == event.event
    assert values == event.to_dict()
    again = parse_event(line)
    assert again == event and type(again) is type(event)


def test_every_event_is_tried_here():
    assert {type(event) for event in ALL} == set(EVENTS.values())
    assert set(EVENTS) == {"loaded", "step", "memory", "saved", "log", "heartbeat", "done", "error"}


def test_the_names_of_a_step_are_those_of_the_results_file():
    names = [
        "event",
        "method",
        "step",
        "loss",
        "step_time_s",
        "tokens",
        "allocator_peak_mb",
        "allocator_peak_by_phase_mb",
    ]
    names += ["footprint_start_mb", "footprint_end_mb", "footprint_peak_mb"]
    assert set(names) <= set(STEP.to_dict())


def test_results_of_versions_without_the_devices_figures_are_read():
    values = ALL[0].to_dict()
    del values["device_info"]
    assert parse_event(json.dumps(values)) == ALL[0]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_diverged_loss_is_valid_json_and_still_a_number(loss):
    """null, because JSON has no NaN; reading it back gives NaN, which nobody can mistake for a loss."""
    values = STEP.to_dict() | {"loss": loss}
    values.pop("event")
    line = Step(**values | {"perplexity": math.inf, "allocator_peak_by_phase_mb": {"all": math.nan}}).to_json()
    parsed = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert parsed["loss"] is None and parsed["perplexity"] is None and parsed["allocator_peak_by_phase_mb"] == {"all": None}
    assert math.isnan(parse_event(line).loss)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "3",
        "null",
        '"step"',
        "{}",
        '{"event": "dance", "method": "mesp"}',
        '{"event": [], "method": "mesp"}',
        '{"event": "step", "method": "mesp"}',
        '{"event": "heartbeat", "method": "mesp"}',
        '{"event": "heartbeat", "method": "mesp", "t_s": 1.0, "more": 2}',
        STEP.to_json()[:-10],
    ],
)
def test_what_is_no_event_is_a_value_error(line):
    with pytest.raises(ValueError, match="not an event"):
        parse_event(line)
