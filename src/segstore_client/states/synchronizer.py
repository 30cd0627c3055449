"""A state that many programs share: each change is made once, on the newest state.

Owns: ``Synchronizer``, which has the state after all revisions that were read, and changes of it
that other programs' changes do not disturb. The bytes around states and updates are those of the
official client's ``StateSynchronizer``; reader groups are such states.

Invariants:
1. When another program changes the state first, a change is decided again on the new state. Held by
   ``test_each_change_is_made_once_on_the_newest_state``.
2. When an append is cancelled, the state is read again before it is used. Held by
   ``test_changes_that_are_cancelled_are_known_before_the_next``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.sessions.revisions import decode_revision, encode_state, encode_updates
from segstore_client.errors import ConflictError, PravegaError
from segstore_client.states.revision_log import RevisionLog

COMPACTION_BYTES = 512 * 1024
"""A log of more bytes than this is to be compacted, as the official clients do."""

S = TypeVar("S")


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
        self.on_state: Callable[[S], None] | None = None
        """Called with each state that is read, also with those on the way to the newest."""
        self._name = name
        self._load = load
        self._apply = apply
        self._states: list[S] = []
        """The state; empty before there is one."""
        self._is_certain = False
        """False when the log may have changes of this client that the state does not have."""

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
        await self._log.aclose()

    @property
    def state(self) -> S:
        """Return the state that was read last. Raises ``ConflictError`` if there is none."""
        if not self._states:
            raise ConflictError(f"no client has begun the state in {self._name}")
        return self._states[0]

    @property
    def is_long(self) -> bool:
        """Return whether the log has more than ``COMPACTION_BYTES`` since its compaction."""
        return self._log.bytes_since_mark > COMPACTION_BYTES

    async def begin(self, state: bytes) -> bool:
        """Write the first state; return False if another client has written one already."""
        if not self._is_certain:
            await self._read()
        # An append that fails or is cancelled may have been made.
        self._is_certain = False
        if self._states or not await self._log.append(encode_state(state)):
            return False
        self._states = [self._load(state)]
        self._is_certain = True
        return True

    async def read(self) -> S:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such stream, and ``ConflictError`` if no client has
        begun the state.
        """
        await self._read()
        return self.state

    async def change(self, decide: Callable[[S], Sequence[bytes]]) -> Sequence[bytes]:
        """Make the updates that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster.
        """
        while True:
            if not self._is_certain:
                await self._read()
            updates = decide(self.state)
            if not updates:
                return updates
            self._is_certain = False
            if await self._log.append(encode_updates(updates)):
                for update in updates:
                    self._states = [self._apply(self.state, update)]
                self._is_certain = True
                return updates

    async def compact(self, dump: Callable[[S], bytes]) -> bool:
        """Replace the log by the bytes of the whole state, so that it stays short.

        Return False if another client has changed the state meanwhile: nothing is compacted then.
        """
        if not self._is_certain:
            await self._read()
        self._is_certain = False
        self._is_certain = await self._log.compact(encode_state(dump(self.state)))
        return self._is_certain

    async def find_length(self) -> None:
        """Ask where the last compaction is: another client may have compacted the log."""
        await self._log.update_mark()

    async def _read(self) -> None:
        is_anew, revisions = await self._log.read()
        if is_anew:
            self._states = []
        try:
            for revision in revisions:
                is_whole, parts = decode_revision(revision)
                for part in parts:
                    self._take(part, is_whole=is_whole)
                if self.on_state is not None and self._states:
                    self.on_state(self.state)
        except RemoteProtocolError as error:
            raise PravegaError(f"{self._name} has no state of its kind: {error}") from error
        self._is_certain = True

    def _take(self, data: bytes, *, is_whole: bool) -> None:
        if is_whole:
            self._states = [self._load(data)]
        elif self._states:
            # Updates before the first whole state are of a log that was truncated.
            self._states = [self._apply(self.state, data)]
