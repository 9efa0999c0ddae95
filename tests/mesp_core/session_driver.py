"""Driving a session: running it to its end, and reading what it said and saved."""

import json

from mesp_core.runs import events

ENDLESS = 100_000  # steps


def follow(session, at_step=0, act=None):
    """Run a session to its end, calling `act` when it has said step `at_step`; what it said."""
    heard = []
    for event in session.run():
        heard.append(event)
        if isinstance(event, events.Step) and event.step == at_step:
            act()
    return heard


def steps_of(heard):
    return [event for event in heard if isinstance(event, events.Step)]


def step_of(adapter):
    """The step of an adapter, as the adapter itself says."""
    return json.loads((adapter / "adapter_config.json").read_text())["mesp"]["step"]
