"""Several methods side by side, a step of each in turn: whatever slows the machine down slows all of them alike."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from mesp_core.runs import events
from mesp_core.runs.session import Session


class Turns:
    """One worker a method, all alive at once, of which one at a time works: loads, or does a step.

    They load one after the other, then do their steps in turn. A worker that has ended, however that came, drops out of the
    round.
    """

    def __init__(
        self, methods: Sequence[str], begin: Callable[[str], Session | None], end: Callable[[Session], bool]
    ) -> None:
        """Nothing is started yet.

        Args:
            methods: in the order of their turns.
            begin: the session of a method, not running yet; None to begin no further one.
            end: told of a session whose outcome is known; False asks the other workers to stop.
        """
        self._begin, self._end = begin, end
        self._to_begin = deque(methods)
        self._threads: dict[Session, threading.Thread] = {}  # of the workers that have not ended
        self._waiting: deque[Session] = deque()  # for their turn
        self._working: Session | None = None
        # What the sessions say: an event, None at the end, or the error that came out of one.
        self._heard: queue.SimpleQueue[tuple[Session, events.Event | BaseException | None]] = queue.SimpleQueue()

    def run(self) -> Iterator[events.Event]:
        """Yield what the workers say until all have ended. Leaving the iterator early ends them."""
        try:
            self._pass_turn()
            while self._threads:
                session, said = self._heard.get()
                if isinstance(said, BaseException):
                    raise said
                if said is None:
                    self._leave(session)
                    continue
                yield said
                # A worker saves at the beginning of its turn, and in its last one at the end too.
                more = isinstance(said, events.Step) and said.step < session.job.config.steps
                if more or isinstance(said, events.Loaded):
                    self._waiting.append(session)
                    self._pass_turn()
        finally:
            for session in self._threads:
                session.kill()
            for thread in self._threads.values():
                thread.join()

    def _pass_turn(self) -> None:
        self._working = None
        if self._to_begin:
            self._working = self._begin(self._to_begin.popleft())
            if self._working is not None:
                thread = threading.Thread(target=self._listen, args=[self._working], daemon=True)
                self._threads[self._working] = thread
                thread.start()
                return
            self._to_begin.clear()
        if self._waiting:
            self._working = self._waiting.popleft()
            self._working.hand_out(1)

    def _leave(self, session: Session) -> None:
        self._threads.pop(session).join()
        if session in self._waiting:
            self._waiting.remove(session)
        if not self._end(session):
            self._to_begin.clear()
            for other in self._threads:
                other.stop()
        if session is self._working:
            self._pass_turn()

    def _listen(self, session: Session) -> None:
        """On a thread of the session's own, so that each watches over its worker's silence and limits all the time."""
        try:
            for event in session.run():
                self._heard.put((session, event))
            self._heard.put((session, None))
        except BaseException as error:
            self._heard.put((session, error))
