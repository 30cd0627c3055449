"""What is done together in one turn of the event loop.

Owns: ``Turns``, one for each event loop: the calls that its steps left for their end.

Invariants:
1. Calls are made in the order in which they were asked for; what they ask for is made with them.
2. What is asked for within a step is done when the step ends, without another turn; what is asked
   for elsewhere is done in the next turn.
3. Where nobody runs the turns (``is_run`` is False) nothing may be asked for: simulations and tests
   do the same in tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

Call = Callable[[], None]
"""May not raise: it is made in somebody else's task."""


class Turns:
    """See the module. A step is ``begin``, anything that does not wait, and ``end``."""

    def __init__(self) -> None:
        self._runner_count = 0
        self._calls: deque[Call] = deque()
        self._in_step = False
        self._asked = trio.Event()

    @property
    def is_run(self) -> bool:
        """Whether somebody runs the turns: one of the servers of this event loop."""
        return self._runner_count > 0

    def soon(self, call: Call) -> None:
        """Make the call at the end of this step, or in the next turn."""
        self._calls.append(call)
        if not self._in_step:
            self._asked.set()

    def begin(self) -> None:
        """A step begins."""
        self._in_step = True

    def end(self) -> None:
        """A step ends: make the calls that were asked for."""
        calls = self._calls
        try:
            while calls:
                calls.popleft()()
        finally:
            self._in_step = False
            if calls:  # a defect, which ends whoever made this step: others go on
                self._asked.set()

    async def run(self) -> None:
        """Make the calls that were asked for outside of steps, until cancelled, and the last."""
        self._runner_count += 1
        try:
            while True:
                asked = self._asked
                await asked.wait()
                if self._asked is asked:
                    self._asked = trio.Event()
                self.begin()
                self.end()
        finally:
            self._runner_count -= 1
            self.begin()
            self.end()


_CURRENT: Final[trio.lowlevel.RunVar[Turns]] = trio.lowlevel.RunVar("turns")


def current_turns() -> Turns:
    """The turns of the running event loop."""
    try:
        return _CURRENT.get()
    except LookupError:
        turns = Turns()
        _CURRENT.set(turns)
        return turns
