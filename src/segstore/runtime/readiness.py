"""Which sockets have something to read, and which connections have something to send.

Owns: one set of watched sockets for all connections of an event loop, registered once each; and the
turn at which replies leave.

Invariants:
1. A socket is registered when its connection begins and never again: an edge tells that something
   came, and ``Readiness.ready`` remembers it until a read has found the socket empty.
2. What ends (the peer's end, an error) stays ready for ever: every later read tells so again.
3. While a task lets ``pass_on`` do its work it is not resumed for what comes: that is taken there
   and then, in the task that waits for all sockets, until the other has to go on itself.
4. A connection that put replies is flushed once at the end of the step in which it did so, or in
   the next turn of the event loop, in the order in which connections had something to send.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

import trio

from segstore.runtime.turns import current_turns

OnReady = Callable[[], bool]
"""Takes what is there without waiting; returns whether to be called again for what comes next."""

_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Readiness:
    """What is known of one socket. One task waits for it at a time."""

    __slots__ = ("_closed", "_on_ready", "_task", "ended", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.ended = False
        self._closed = False
        self._task: trio.lowlevel.Task | None = None
        self._on_ready: OnReady | None = None

    async def wait(self) -> None:
        """Return when there may be something to read. A checkpoint in any case.

        Raises ``trio.ClosedResourceError`` when the socket is not watched any more.
        """
        if self.ready or self._closed:
            await trio.lowlevel.checkpoint()
        else:
            await self._park()
        if self._closed:
            raise trio.ClosedResourceError("the socket was closed here")

    async def pass_on(self, on_ready: OnReady) -> None:
        """Call ``on_ready`` whenever something came, until it says that it will not go on.

        Returns at once, which is no checkpoint, when something is there already. ``on_ready`` may
        not raise. Raises ``trio.ClosedResourceError`` like ``wait``.
        """
        if self.ready:
            return
        self._on_ready = on_ready
        try:
            await self.wait()
        finally:
            self._on_ready = None

    async def _park(self) -> None:
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def note_read(self, *, emptied: bool) -> None:
        """Note what a read found."""
        if emptied and not self.ended:
            self.ready = False

    def note(self, *, ended: bool) -> None:
        """Note that something came."""
        self.ready = True
        self.ended |= ended
        if self._on_ready is None or self._task is None or not self._on_ready():
            self._wake()

    def close(self) -> None:
        """Let nobody wait any more."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class ReadySockets:
    """The sockets of an event loop; ``run`` in one task."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Readiness] = {}
        self._turns = current_turns()

    def watch(self, descriptor: int) -> Readiness:
        """Begin to watch a socket."""
        self._epoll.register(descriptor, _WATCHED)
        self._watched[descriptor] = readiness = Readiness()
        return readiness

    def forget(self, descriptor: int) -> None:
        """Stop watching a socket, before it is closed."""
        readiness = self._watched.pop(descriptor, None)
        if readiness is not None:
            self._epoll.unregister(descriptor)
            readiness.close()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call ``flush`` at the end of this step, or in the next turn."""
        self._turns.soon(flush)

    async def run(self) -> None:
        """Pass on what comes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._turns.run)
            await self._pass_on()

    def close(self) -> None:
        """Stop watching; no connection may be left."""
        self._epoll.close()

    async def _pass_on(self) -> None:
        descriptor, poll, watched = self._epoll.fileno(), self._epoll.poll, self._watched
        turns = self._turns
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            turns.begin()
            for ready, flags in poll(0):
                watched[ready].note(ended=flags & _ENDED != 0)
            turns.end()
