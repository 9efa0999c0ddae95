"""What a worker says to its session, and what it is told: events out, the commands `step` and `stop` in."""

import json
import signal
import threading
import time
from typing import TextIO

from mesp_core.runs import events

HEARTBEAT_S = 1.0
# For a signal that the system sends, in place of who sent it.
REASONS = {signal.SIGXCPU: "the system's limit on processor time (ulimit -t) is reached, as SIGXCPU says"}


class Channel:
    """Events out, commands in. Safe to use from the heartbeat's thread.

    A worker does only the steps that it was handed out: {"command": "step", "steps": how many more}.
    """

    def __init__(self, out: TextIO, commands: TextIO, method: str) -> None:
        self.method = method
        self.stop_asked = threading.Event()
        self._turns = threading.Semaphore(0)  # steps that were handed out, and one more once a stop was asked for
        self._out, self._commands, self._lock = out, commands, threading.Lock()
        self._start = time.monotonic()
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, event: events.Event) -> None:
        """Send one event; a parent that is gone is a reason to stop."""
        try:
            with self._lock:
                self._out.write(event.to_json() + "\n")
                self._out.flush()
        except (BrokenPipeError, ValueError):
            self._stop()

    def log(self, level: str, message: str) -> None:
        """Send a log event."""
        self.say(events.Log(self.method, level, message))

    def wait_for_turn(self) -> bool:
        """Sleep until one more step was handed out (True) or a stop was asked for (False)."""
        self._turns.acquire()
        return not self.stop_asked.is_set()

    def stop_on_signal(self, number: signal.Signals) -> None:
        """End after the step, and say why. On a thread: a signal's handler may run while a lock is held that this takes."""

        def tell_and_stop() -> None:
            if not self.stop_asked.is_set():
                self.log(
                    "warning", f"Stopping after this step: {REASONS.get(number, f'the worker was sent {number.name}')}."
                )
            self._stop()

        threading.Thread(target=tell_and_stop, daemon=True).start()

    def _stop(self) -> None:
        self.stop_asked.set()
        self._turns.release()

    def _beat(self) -> None:
        while True:
            self.say(events.Heartbeat(self.method, round(time.monotonic() - self._start, 3)))
            time.sleep(HEARTBEAT_S)

    def _listen(self) -> None:
        for line in self._commands:
            try:
                values = json.loads(line)
                command, steps = values["command"], values.get("steps")
                if command == "stop":
                    self._stop()
                elif command == "step":
                    self._turns.release(steps)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that was cut short, or is no command of ours
        # End of input: the parent is gone. What was learnt is still saved.
        self._stop()
