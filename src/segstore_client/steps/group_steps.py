"""The operations on the state of a reader group, without I/O: attempts out, results in.

Owns: ``GroupSteps``: changes of the state, as classes and not as bytes, and its compaction. They
are generators, as those of ``StateSteps``.

Invariants:
1. When a state has changes of a later version of the clients, this one does not compact it. Held by
   ``test_a_state_with_unknown_changes_is_not_compacted``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pravega_wire.reader_groups.changes import (
    Change,
    GroupBegun,
    decode_change,
    encode_change,
)
from pravega_wire.reader_groups.states import GroupState
from pravega_wire.sessions.segment_log import LogSession
from segstore_client.errors import NotFoundError
from segstore_client.steps.state_steps import StateSteps, Steps

T = TypeVar("T")
Decide = Callable[[GroupState], Sequence[Change]]


class GroupSteps:
    """The state of the group ``name`` in the log of ``session``."""

    def __init__(self, session: LogSession, name: str) -> None:
        self.name = name
        self._state = StateSteps(session, name=f"reader group {name}", load=_load, apply=_apply)

    def watch(self, on_state: Callable[[GroupState], None]) -> None:
        """Call this function with each state that is read, also with those on the way to the
        newest."""
        self._state.on_state = on_state

    @property
    def state(self) -> GroupState:
        """Return the state that was read last."""
        return self._state.state

    def read(self) -> Steps[GroupState]:
        """Return the newest state.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if no client has
        begun it.
        """
        return (yield from self._named(self._state.read()))

    def begin(self, begin: GroupBegun) -> Steps[bool]:
        """Write the first state; return False if another client has begun the group already."""
        return (yield from self._state.begin(encode_change(begin)))

    def change(self, decide: Decide) -> Steps[Sequence[Change]]:
        """Make the changes that ``decide`` returns for the newest state, together; return them.

        ``decide`` is called again when another client was faster. Raises as ``read``.
        """
        made: Sequence[Change] = ()

        def decide_updates(state: GroupState) -> list[bytes]:
            nonlocal made
            made = decide(state)
            return [encode_change(change) for change in made]

        yield from self._named(self._state.change(decide_updates))
        return made

    def compact_if_long(self) -> Steps[None]:
        """Compact the log if it is long, unless another client has done so meanwhile."""
        if not self._state.is_long or not self.state.is_understood:
            return
        yield from self._state.find_length()
        if self._state.is_long:
            yield from self._state.compact(lambda state: encode_change(state.compact()))

    def _named(self, steps: Steps[T]) -> Steps[T]:
        """Name the group if it is not found."""
        try:
            return (yield from steps)
        except NotFoundError:
            raise NotFoundError(f"reader group {self.name} does not exist") from None


def _load(data: bytes) -> GroupState:
    state = GroupState()
    state.apply([decode_change(data)])
    return state


def _apply(state: GroupState, data: bytes) -> GroupState:
    state.apply([decode_change(data)])
    return state
