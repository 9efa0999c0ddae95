"""Driving a session: running it to its end, and reading what it said and saved."""

import contextlib
import json

import psutil

from mesp_core.runs import events

ENDLESS = 100_000  # steps


def running(session):
    """Run a session, its worker being handed out all steps at once, as a comparison does; yield what it says."""
    with contextlib.closing(session.run()) as heard:
        for event in heard:
            if isinstance(event, events.Loaded):
                session.hand_out(session.job.config.steps)
            yield event


def follow(session, at_step=0, act=None):
    """Run a session to its end, calling `act` when it has said step `at_step`; what it said."""
    heard = []
    for event in running(session):
        heard.append(event)
        if isinstance(event, events.Step) and event.step == at_step:
            act()
    return heard


def steps_of(heard):
    return [event for event in heard if isinstance(event, events.Step)]


def step_of(adapter):
    """The step of an adapter, as the adapter itself says."""
    return json.loads((adapter / "adapter_config.json").read_text())["mesp"]["step"]


def assert_usable(folder):
    """An adapter of four blocks with seven pairs each that has learnt something; the step it is from."""
    import mlx.core as mx

    from mesp_core.adapters.adapter import load_adapter

    tree, _ = load_adapter(folder)
    assert len(tree) == 28
    for pair in tree.values():
        assert all(mx.isfinite(array).all().item() for array in pair.values())
        assert mx.abs(pair["lora_b"]).max().item() > 0
    return step_of(folder)


def assert_gone(session):
    """The worker has ended and was waited for."""
    assert session.pid is not None
    assert not psutil.pid_exists(session.pid)
