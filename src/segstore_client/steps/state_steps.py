"""The operations on a state that many programs share, without I/O: attempts out, results in.

Owns: ``StateSteps``, which has the state after all revisions that were read, and changes of it that
other programs' changes do not disturb. The bytes around states and updates are those of the
official client's ``StateSynchronizer``; reader groups are such states.

An operation is a generator, so that a client that blocks and an async one share it: it yields an
attempt at the log, which is repeated while servers are away, gets its result, and returns its own.

Invariants:
1. When another program changes the state first, a change is decided again on the new state. Held by
   ``test_each_change_is_made_once_on_the_newest_state`` and
   ``test_each_change_of_programs_that_block_is_made_once``.
2. When an append is cancelled or interrupted, the state is read again before it is used. Held by
   ``test_changes_that_are_cancelled_are_known_before_the_next`` and
   ``test_a_change_that_was_interrupted_is_known_before_the_next``.
3. When a read is interrupted, the next one finds the state as if it had not been. Held by
   ``test_a_read_that_was_interrupted_is_made_anew``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.sessions.revisions import decode_revision, encode_state, encode_updates
from pravega_wire.sessions.segment_log import Attempt, LogSession
from segstore_client.errors import ConflictError, PravegaError

COMPACTION_BYTES = 512 * 1024
"""A log of more bytes than this is to be compacted, as the official clients do."""

S = TypeVar("S")
T = TypeVar("T")
Steps: TypeAlias = Generator[Attempt, Any, T]


class StateSteps(Generic[S]):
    """The state in the log of ``session``. One task or thread runs one operation at a time.

    ``load`` makes a state of the bytes of a whole one, ``apply`` returns the state after the bytes
    of an update; it may change the state that it gets. ``name`` is for errors.
    """

    def __init__(
        self,
        session: LogSession,
        *,
        name: str,
        load: Callable[[bytes], S],
        apply: Callable[[S, bytes], S],
    ) -> None:
        self._session = session
        self.on_state: Callable[[S], None] | None = None
        """Called with each state that is read, also with those on the way to the newest."""
        self._name = name
        self._load = load
        self._apply = apply
        self._states: list[S] = []
        """The state; empty before there is one."""
        self._is_certain = False
        """False when the log may have changes of this client that the state does not have."""
        self._offset: int | None = None
        """The end of what the state has of the log; None while that changes. A program that blocks
        may be interrupted at any moment, and go on."""

    @property
    def state(self) -> S:
        """Return the state that was read last. Raises ``ConflictError`` if there is none."""
        if not self._states:
            raise ConflictError(f"no client has begun the state in {self._name}")
        return self._states[0]

    @property
    def is_long(self) -> bool:
        """Return whether the log has more than ``COMPACTION_BYTES`` since its compaction."""
        return self._session.bytes_since_mark > COMPACTION_BYTES

    def begin(self, state: bytes) -> Steps[bool]:
        """Write the first state; return False if another client has written one already."""
        if not self._is_certain:
            yield from self._read()
        # An append that fails or is cancelled may have been made.
        self._is_certain = False
        if self._states or not (yield self._session.append(encode_state(state))):
            return False
        self._states = [self._load(state)]
        self._note_certain()
        return True

    def read(self) -> Steps[S]:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such stream, and ``ConflictError`` if no client has
        begun the state.
        """
        yield from self._read()
        return self.state

    def change(self, decide: Callable[[S], Sequence[bytes]]) -> Steps[Sequence[bytes]]:
        """Make the updates that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster.
        """
        while True:
            if not self._is_certain:
                yield from self._read()
            updates = decide(self.state)
            if not updates:
                return updates
            self._is_certain = False
            if (yield self._session.append(encode_updates(updates))):
                self._offset = None
                for update in updates:
                    self._states = [self._apply(self.state, update)]
                self._note_certain()
                return updates

    def compact(self, dump: Callable[[S], bytes]) -> Steps[bool]:
        """Replace the log by the bytes of the whole state, so that it stays short.

        Return False if another client has changed the state meanwhile: nothing is compacted then.
        """
        if not self._is_certain:
            yield from self._read()
        self._is_certain = False
        if not (yield from self._session.compact(encode_state(dump(self.state)))):
            return False
        self._note_certain()
        return True

    def find_length(self) -> Steps[None]:
        """Ask where the last compaction is: another client may have compacted the log."""
        yield self._session.read_mark

    def _read(self) -> Steps[None]:
        self._session.offset = self._offset
        is_anew, revisions = yield self._session.read
        self._offset = None
        self._take_all(is_anew, revisions)
        self._note_certain()

    def _note_certain(self) -> None:
        """Note that the state has all that was read and appended."""
        self._offset = self._session.offset
        self._is_certain = True

    def _take_all(self, is_anew: bool, revisions: Sequence[bytes]) -> None:
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

    def _take(self, data: bytes, *, is_whole: bool) -> None:
        if is_whole:
            self._states = [self._load(data)]
        elif self._states:
            # Updates before the first whole state are of a log that was truncated.
            self._states = [self._apply(self.state, data)]
