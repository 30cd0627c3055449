"""The states of an owner's right to a container, and the steps between them.

Owns: ``NEXT_STATES``, the table of all steps, and ``PERMISSIONS``, the actions that an owner may
take in each state. These are tables alone; ``token.OwnerToken`` takes the steps.

    ABSENT ─▶ ASSIGNED ─▶ OPENED ─────────▶ CLAIMED ─────┐
                            ▲ │               ▲ │        ├─▶ LEAVING ─▶ GONE
                            │ ▼               │ ▼        │
                       OPENED_IN_DOUBT ─▶ CLAIMED_IN_DOUBT      FENCED: from any of these

An owner is one opening of a container by one process. It opens the container's log under an epoch
that no other owner ever has, and claims the container's chunks in tier 2 under the same epoch.

Invariants:
1. When a caller takes a step that the table does not have, ``next_state`` raises
   ``RefusedStepError``: the caller has a defect. Held by
   ``test_every_pair_is_a_step_or_is_refused``.
2. When an owner has ended, as ``FENCED`` or ``GONE``, its state never changes again; another
   opening of the container is another owner. Held by
   ``test_what_has_ended_changes_no_more_and_all_else_can_end``.
3. While an owner is in doubt, it may have lost the container without knowing it, so it answers
   nothing. It may still write, because the log and tier 2 refuse entries and chunks of an earlier
   epoch. Held by ``test_an_owner_in_doubt_may_all_that_its_certain_twin_may_but_answer``.
"""

from __future__ import annotations

import enum
from typing import Final


class OwnerState(enum.Enum):
    """The states of an owner's right to a container."""

    ABSENT = "absent"
    """The container is not assigned to this process."""
    ASSIGNED = "assigned"
    """The map of the cluster assigns the container to this host. Without a cluster: this process
    has the journal's lock and the claim of tier 2."""
    OPENED = "opened"
    """The log is opened under this owner's epoch, and refuses entries of earlier owners."""
    CLAIMED = "claimed"
    """The epoch is claimed in tier 2, too: no owner reads what earlier owners write there now."""
    OPENED_IN_DOUBT = "opened, in doubt"
    """As ``OPENED``, but another owner may have opened the log since the last proof."""
    CLAIMED_IN_DOUBT = "claimed, in doubt"
    """As ``CLAIMED``, but another owner may have opened the log since the last proof."""
    LEAVING = "leaving"
    """The owner hands the container over or stops. It gets no new requests, and flushes."""
    FENCED = "fenced"
    """This owner has seen the epoch of a later owner, which has the container now."""
    GONE = "gone"
    """The owner has ended, without having seen a later owner."""


class OwnerEvent(enum.Enum):
    """The events that change the state of an owner."""

    ASSIGN = "assign"
    """The container is given to this process."""
    OPEN = "open"
    """The log was opened."""
    CLAIM = "claim"
    """The claim of the epoch in tier 2 is durable, and tier 2 has no later claim."""
    DOUBT = "doubt"
    """The last proof that no other owner has opened the log is too old for an answer."""
    CONFIRM = "confirm"
    """There is a new proof: bookies confirmed an entry, or the log's node was read."""
    LEAVE = "leave"
    """The container is assigned to another host, the process ends, or the container has failed."""
    FENCE = "fence"
    """This owner has seen the epoch of a later owner, in the log or in tier 2."""
    END = "end"
    """Both tiers are closed."""


class Permission(enum.Enum):
    """The actions of an owner that need a permission."""

    ANSWER = "answer"
    """Answer a request of a client."""
    APPEND = "append"
    """Write entries to the log, which refuses those of an earlier owner."""
    STORE = "store"
    """Write chunks to tier 2."""
    DELETE = "delete"
    """Delete chunks in tier 2, after listing the claims and when earlier leases have ended."""


_S, _E = OwnerState, OwnerEvent

NEXT_STATES: Final[dict[OwnerState, dict[OwnerEvent, OwnerState]]] = {
    _S.ABSENT: {_E.ASSIGN: _S.ASSIGNED},
    _S.ASSIGNED: {_E.OPEN: _S.OPENED, _E.END: _S.GONE},
    _S.OPENED: {
        _E.CLAIM: _S.CLAIMED,
        _E.DOUBT: _S.OPENED_IN_DOUBT,
        _E.LEAVE: _S.LEAVING,
        _E.FENCE: _S.FENCED,
        _E.END: _S.GONE,
    },
    _S.CLAIMED: {
        _E.DOUBT: _S.CLAIMED_IN_DOUBT,
        _E.LEAVE: _S.LEAVING,
        _E.FENCE: _S.FENCED,
        _E.END: _S.GONE,
    },
    _S.OPENED_IN_DOUBT: {
        _E.CLAIM: _S.CLAIMED_IN_DOUBT,
        _E.CONFIRM: _S.OPENED,
        _E.LEAVE: _S.LEAVING,
        _E.FENCE: _S.FENCED,
    },
    _S.CLAIMED_IN_DOUBT: {
        _E.CONFIRM: _S.CLAIMED,
        _E.LEAVE: _S.LEAVING,
        _E.FENCE: _S.FENCED,
    },
    _S.LEAVING: {_E.CLAIM: _S.LEAVING, _E.FENCE: _S.FENCED, _E.END: _S.GONE},
    _S.FENCED: {_E.LEAVE: _S.FENCED, _E.FENCE: _S.FENCED, _E.END: _S.FENCED},
    _S.GONE: {_E.FENCE: _S.GONE},
}
"""The state after each event, by the state before it. An event that is missing for a state is
refused."""

_WRITES: Final = frozenset({Permission.APPEND, Permission.STORE, Permission.DELETE})
PERMISSIONS: Final[dict[OwnerState, frozenset[Permission]]] = {
    _S.ABSENT: frozenset(),
    _S.ASSIGNED: frozenset(),
    _S.OPENED: frozenset({Permission.ANSWER, Permission.APPEND}),
    _S.CLAIMED: _WRITES | {Permission.ANSWER},
    _S.OPENED_IN_DOUBT: frozenset({Permission.APPEND}),
    _S.CLAIMED_IN_DOUBT: _WRITES,
    _S.LEAVING: _WRITES | {Permission.ANSWER},
    _S.FENCED: frozenset(),
    _S.GONE: frozenset(),
}
"""The permissions of an owner in each state."""
IN_DOUBT: Final = frozenset({_S.OPENED_IN_DOUBT, _S.CLAIMED_IN_DOUBT})
ENDED: Final = frozenset({_S.FENCED, _S.GONE})


class RefusedStepError(Exception):
    """A caller took a step that the table does not have, which is a defect."""


def next_state(state: OwnerState, event: OwnerEvent) -> OwnerState:
    """Return the state after an event. Raises ``RefusedStepError`` when the table has none."""
    after = NEXT_STATES[state].get(event)
    if after is None:
        raise RefusedStepError(f"an owner that is {state.value} cannot {event.value}")
    return after
