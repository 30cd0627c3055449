"""A state that many programs share: each change is made once, on the newest state.

Owns: ``BlockingSynchronizer``, for a program that blocks. What is read and appended is that of
``StateSteps``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

from pravega_wire.sessions.steps import run_steps
from segstore_client.blocking.states.revision_log import BlockingRevisionLog
from segstore_client.errors import ClosedError
from segstore_client.steps.state_steps import StateSteps, Steps

S = TypeVar("S")
T = TypeVar("T")


class BlockingSynchronizer(Generic[S]):
    """A state that is shared by a stream of one segment. Use it in one thread, within a ``with``
    block.

    ``load`` makes a state of the bytes of a whole one, ``apply`` returns the state after the bytes
    of an update; it may change the state that it gets.
    """

    def __init__(
        self,
        log: BlockingRevisionLog,
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection: each call raises ``ClosedError`` then. Idempotent."""
        self._is_closed = True
        self._log.close()

    @property
    def state(self) -> S:
        """Return the state that was read last. Raises ``ConflictError`` if there is none."""
        return self._steps.state

    @property
    def is_long(self) -> bool:
        """Return whether the log has more than ``COMPACTION_BYTES`` since its compaction."""
        return self._steps.is_long

    def begin(self, state: bytes) -> bool:
        """Write the first state; return False if another client has written one already."""
        return self._run(self._steps.begin(state))

    def read(self) -> S:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such stream, and ``ConflictError`` if no client has
        begun the state.
        """
        return self._run(self._steps.read())

    def change(self, decide: Callable[[S], Sequence[bytes]]) -> Sequence[bytes]:
        """Make the updates that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster.
        """
        return self._run(self._steps.change(decide))

    def compact(self, dump: Callable[[S], bytes]) -> bool:
        """Replace the log by the bytes of the whole state, so that it stays short.

        Return False if another client has changed the state meanwhile: nothing is compacted then.
        """
        return self._run(self._steps.compact(dump))

    def find_length(self) -> None:
        """Ask where the last compaction is: another client may have compacted the log."""
        self._run(self._steps.find_length())

    def _run(self, steps: Steps[T]) -> T:
        if self._is_closed:
            raise ClosedError(f"the state in {self._name} is closed")
        return run_steps(steps, self._log.repeat)
