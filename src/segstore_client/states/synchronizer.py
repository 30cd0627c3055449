"""A state that many programs share: each change is made once, on the newest state.

Owns: ``Synchronizer``, for a program that does not block. What is read and appended is that of
``StateSteps``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from pravega_wire.sessions.steps import run_steps_async
from segstore_client.errors import ClosedError
from segstore_client.states.revision_log import RevisionLog
from segstore_client.steps.state_steps import StateSteps, Steps

S = TypeVar("S")
T = TypeVar("T")


class Synchronizer(Generic[S]):
    """A state that is shared by a stream of one segment. Use it in an ``async with`` block, in one
    task.

    ``Store.synchronizer`` makes it. ``load`` makes a state of the bytes of a whole one, ``apply``
    returns the state after the bytes of an update; it may change the state that it gets.
    """

    def __init__(
        self,
        log: RevisionLog,
        *,
        name: str,
        load: Callable[[bytes], S],
        apply: Callable[[S, bytes], S],
    ) -> None:
        self._log = log
        self._name = name
        self._is_closed = False
        self._steps = StateSteps(log.session, name=name, load=load, apply=apply)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        await self._log.aclose()

    @property
    def state(self) -> S:
        """Return the state that was read last. Raises ``ConflictError`` if there is none."""
        return self._steps.state

    @property
    def is_long(self) -> bool:
        """Return whether the log has more than ``COMPACTION_BYTES`` since its compaction."""
        return self._steps.is_long

    async def begin(self, state: bytes) -> bool:
        """Write the first state; return False if another client has written one already."""
        return await self._run(self._steps.begin(state))

    async def read(self) -> S:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such stream, and ``ConflictError`` if no client has
        begun the state.
        """
        return await self._run(self._steps.read())

    async def change(self, decide: Callable[[S], Sequence[bytes]]) -> Sequence[bytes]:
        """Make the updates that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster.
        """
        return await self._run(self._steps.change(decide))

    async def compact(self, dump: Callable[[S], bytes]) -> bool:
        """Replace the log by the bytes of the whole state, so that it stays short.

        Return False if another client has changed the state meanwhile: nothing is compacted then.
        """
        return await self._run(self._steps.compact(dump))

    async def find_length(self) -> None:
        """Ask where the last compaction is: another client may have compacted the log."""
        await self._run(self._steps.find_length())

    async def _run(self, steps: Steps[T]) -> T:
        if self._is_closed:
            raise ClosedError(f"the state in {self._name} is closed")
        return await run_steps_async(steps, self._log.repeat)
