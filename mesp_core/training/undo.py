"""What the adapters were before a step, while it changes them block by block: a step that breaks off is taken back.

The old values wait in a scratch file, as no memory is to hold the adapters twice.
"""

from collections.abc import Callable, Iterable

from mesp_core.engine.block_inputs import BlockInputs
from mesp_core.engine.method import AdapterTree
from mesp_core.errors import MespError


class Undo:
    """Lays old values of `adapters` aside in the stack that `make_stack` gives, which is first called when there is one.

    A stack that cannot be had or fails ends no run: then `whole` may be False after a step that broke off. `tell` is called
    once with the reason. Without `make_stack` nothing is laid aside: for a caller that has no use for the adapters then.
    """

    def __init__(
        self,
        adapters: AdapterTree,
        make_stack: Callable[[], BlockInputs] | None = None,
        tell: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._adapters, self._make_stack, self._tell = adapters, make_stack, tell
        self._stack: BlockInputs | None = None
        self._failed = make_stack is None
        self._aside: list[tuple[str, str]] = []
        self.whole = True

    def begin_step(self) -> None:
        """What was laid aside is not needed any more: the adapters are those of a whole step."""
        self._aside.clear()
        if self._stack is not None:
            self._stack.clear()
        self.whole = True

    def lay_aside(self, paths: Iterable[str]) -> None:
        """Lay the values of these adapters aside, which are evaluated and about to change."""
        paths = list(paths)
        self.whole = False
        if len(paths) == len(self._adapters) and not self._aside:
            return  # all change at once: nothing comes after it that could break off, but the update itself
        if self._failed:
            return
        try:
            if self._stack is None:
                self._stack = self._make_stack()
            for path in paths:
                for name, value in self._adapters[path].items():
                    self._stack.push(value)
                    self._aside.append((path, name))
        except MespError as error:
            self._failed = True
            self._aside.clear()
            self.close()  # what it has claimed of a disk that is full is wanted elsewhere
            self._tell(f"{error} Until there is such a file, a step that breaks off half-way cannot be taken back.")

    def restore(self) -> None:
        """Give the adapters the values from before the step; `whole` says whether that was possible."""
        if not self._aside:
            return
        try:
            while self._aside:
                path, name = self._aside[-1]
                self._adapters[path][name] = self._stack.pop()
                self._aside.pop()
        except MespError:
            return
        self.whole = True

    def close(self) -> None:
        """Give the scratch file back."""
        if self._stack is not None:
            self._stack.close()
