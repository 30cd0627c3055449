"""The state of a reader group, as it is in its log, for a client that does not block.

Owns: ``GroupLog``: changes of the state, as classes and not as bytes, and its compaction.

Invariants:
1. When a state has changes of a later version of the clients, this one does not compact it. Held by
   ``test_a_state_with_unknown_changes_is_not_compacted``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pravega_wire.names import reader_group_stream, scoped_name
from pravega_wire.reader_groups.changes import (
    Change,
    GroupBegun,
    decode_change,
    encode_change,
)
from pravega_wire.reader_groups.states import GroupState
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import NotFoundError
from segstore_client.states.revision_log import RevisionLog
from segstore_client.states.synchronizer import Synchronizer

Decide = Callable[[GroupState], Sequence[Change]]


class GroupLog:
    """The log of one group. One task uses it, and closes it with ``aclose``."""

    def __init__(
        self, controller: ControllerClient, scope: str, group: str, *, patience: float
    ) -> None:
        self.name = scoped_name(scope, group)
        stream = reader_group_stream(group)
        self._synchronizer = Synchronizer(
            RevisionLog(controller, scope, stream, patience=patience),
            name=f"reader group {self.name}",
            load=_load,
            apply=_apply,
        )

    def watch(self, on_state: Callable[[GroupState], None]) -> None:
        """Call this function with each state that is read, also with those on the way to the
        newest."""
        self._synchronizer.on_state = on_state

    @property
    def state(self) -> GroupState:
        """Return the state that was read last."""
        return self._synchronizer.state

    async def aclose(self) -> None:
        """Close the connection."""
        await self._synchronizer.aclose()

    async def read(self) -> GroupState:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if no client has
        begun it.
        """
        try:
            return await self._synchronizer.read()
        except NotFoundError:
            raise NotFoundError(f"reader group {self.name} does not exist") from None

    async def begin(self, begin: GroupBegun) -> bool:
        """Write the first state; return False if another client has begun the group already."""
        return await self._synchronizer.begin(encode_change(begin))

    async def change(self, decide: Decide) -> Sequence[Change]:
        """Make the changes that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster. Raises as ``read``.
        """
        made: Sequence[Change] = ()

        def decide_updates(state: GroupState) -> list[bytes]:
            nonlocal made
            made = decide(state)
            return [encode_change(change) for change in made]

        try:
            await self._synchronizer.change(decide_updates)
        except NotFoundError:
            raise NotFoundError(f"reader group {self.name} does not exist") from None
        return made

    async def compact_if_long(self) -> None:
        """Compact the log if it is long, unless another client has done so meanwhile."""
        synchronizer = self._synchronizer
        if not synchronizer.is_long or not self.state.is_understood:
            return
        await synchronizer.find_length()
        if synchronizer.is_long:
            await synchronizer.compact(lambda state: encode_change(state.compact()))


def _load(data: bytes) -> GroupState:
    state = GroupState()
    state.apply([decode_change(data)])
    return state


def _apply(state: GroupState, data: bytes) -> GroupState:
    state.apply([decode_change(data)])
    return state
