"""The state of a reader group, as it is in its log, for a client that does not block.

Owns: ``GroupLog``: the state after all revisions that were read, and changes of it that other
clients' changes do not disturb.

Invariants:
1. When another client changes the state first, a change is decided again on the new state. Held by
   ``test_readers_that_come_at_once_share_the_segments``.
2. When an append is cancelled, the state is read again before it is used. Held by
   ``test_changes_that_are_cancelled_are_known_before_the_next``.
3. When a state has changes of a later version of the clients, this one does not compact it. Held by
   ``test_a_state_with_unknown_changes_is_not_compacted``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pravega_blocking.controller_client import ControllerClient
from pravega_blocking.errors import ConflictError, NotFoundError, PravegaError
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import reader_group_stream, scoped_name
from pravega_wire.reader_groups.changes import Change, encode_changes, encode_state
from pravega_wire.reader_groups.states import GroupState
from segstore_client.revision_log import RevisionLog

COMPACTION_BYTES = 512 * 1024
"""A state of more bytes than this is compacted, as the official clients do."""

Decide = Callable[[GroupState], Sequence[Change]]


class GroupLog:
    """The log of one group. One task uses it, and closes it with ``aclose``."""

    def __init__(
        self, controller: ControllerClient, scope: str, group: str, *, patience: float
    ) -> None:
        self.name = scoped_name(scope, group)
        self.state = GroupState()
        self._is_certain = False
        """False when the log may have changes of this client that the state does not have."""
        stream = reader_group_stream(group)
        self._log = RevisionLog(controller, scope, stream, patience=patience)

    @property
    def length(self) -> int:
        """Return the offset up to which the log was read."""
        return self._log.offset or 0

    async def aclose(self) -> None:
        """Close the connection."""
        await self._log.aclose()

    async def read(self, look: Callable[[GroupState], None] | None = None) -> GroupState:
        """Return the newest state; ``look`` is called with each state on the way to it.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if no client has
        begun it.
        """
        try:
            is_anew, revisions = await self._log.read()
        except NotFoundError:
            raise NotFoundError(f"reader group {self.name} does not exist") from None
        if is_anew:
            self.state = GroupState()
        try:
            for revision in revisions:
                self.state.add(revision)
                if look is not None:
                    look(self.state)
        except RemoteProtocolError as error:
            raise PravegaError(
                f"what is in the log of reader group {self.name} is no state of a group: {error}"
            ) from error
        if not self.state.is_begun:
            raise ConflictError(f"no client has begun the reader group {self.name}")
        self._is_certain = True
        return self.state

    async def begin(self, begin: Change) -> bool:
        """Append the first state; return False if another client has begun the group already."""
        _, revisions = await self._log.read()
        if revisions:
            return False
        return await self._log.append(encode_state(begin))  # type: ignore[arg-type]

    async def change(self, decide: Decide) -> Sequence[Change]:
        """Make the changes that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster.
        """
        while True:
            if not self._is_certain:
                await self.read()
            changes = decide(self.state)
            if not changes:
                return changes
            # An append that fails or is cancelled may have been made.
            self._is_certain = False
            if await self._log.append(encode_changes(changes)):
                self.state.apply(changes)
                self._is_certain = True
                return changes

    async def compact_if_long(self) -> None:
        """Compact the log if it is long, unless another client has done so meanwhile."""
        if self._log.bytes_since_mark <= COMPACTION_BYTES or not self.state.is_understood:
            return
        await self._log.update_mark()
        if self._log.bytes_since_mark > COMPACTION_BYTES:
            await self._log.compact(encode_state(self.state.compact()))
