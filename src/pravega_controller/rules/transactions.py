"""The rules of transactions, as pure functions: ids, names, leases, batches, and rolled epochs.

Owns: the content of a transaction's id, the bounds of its lease, the choice of the transactions
that are committed next, and the epochs by which a stream merges transactions of an earlier epoch.

A transaction is begun on a stream's active epoch, and has one segment for each segment of that
epoch. Its id contains the *reference epoch* of the active epoch. This is the active epoch itself,
or, if a roll has made the active epoch, the earlier epoch whose segments it repeats. So the
transactions that were begun on an epoch and on its repetition are merged together.

Leases end by a monotonic clock. The wall clock is used only after a restart, to compute how much
execution time is left.

Invariants:
1. When a stream was rolled, the names of a transaction's segments still follow from its id: they
   have the number of the parent segment and the epoch of the id.
   Held by ``test_an_epochs_segments_have_the_names_of_its_transactions``.
2. When a controller restarts, an open transaction gets at least its whole lease, whatever the wall
   clock says.
   Held by ``test_a_restart_never_shortens_the_lease_and_never_lengthens_the_execution``.
3. When commits wait, those of one epoch are merged in the order in which they were recorded.
   Held by ``test_batches_take_every_commit_once_in_order``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pravega_controller.errors import InvalidRequestError
from pravega_controller.rules.history import Epoch, duplicate_epoch
from pravega_controller.rules.streams import Segment
from pravega_wire import names

LEASE_MS_MIN = 10_000
LEASE_MS_MAX = 600_000
EXECUTION_LEASES_MAX = 1_000
EXECUTION_MS_MAX = 24 * 60 * 60 * 1_000
BATCH_TRANSACTIONS_MAX = 100
COUNTER_BITS = 96


class TransactionState(enum.Enum):
    """States of a transaction. The values are stored."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


NEXT_STATES: Final[dict[TransactionState | None, frozenset[TransactionState]]] = {
    None: frozenset({TransactionState.OPEN, TransactionState.ABORTED}),
    TransactionState.OPEN: frozenset(
        {TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.ABORTING}
    ),
    TransactionState.COMMITTING: frozenset(
        {TransactionState.COMMITTING, TransactionState.COMMITTED}
    ),
    TransactionState.ABORTING: frozenset({TransactionState.ABORTING, TransactionState.ABORTED}),
    TransactionState.COMMITTED: frozenset(),
    TransactionState.ABORTED: frozenset(),
}
"""The states that may follow each state of a transaction's record (None: there is no record). A
record that keeps its state gets another lease or holder. None is followed by ABORTED if a begin
failed: its late write then finds the key in use. Transactions that have ended are moved to the
archive."""
ABORTED_WITH_THEIR_STREAM: Final = (TransactionState.OPEN, TransactionState.ABORTING)
"""States in which transactions are aborted when their stream is sealed or deleted."""


# ---- Ids and names -------------------------------------------------------------------------------


def make_id(epoch: int, counter: int) -> bytes:
    """Return a transaction's id: 4 bytes of its reference epoch, and 12 bytes of its number."""
    if not 0 <= epoch < 2**31:
        raise InvalidRequestError(f"there is no epoch {epoch}")
    assert 0 <= counter < 2**COUNTER_BITS
    return epoch.to_bytes(4, "big") + counter.to_bytes(12, "big")


def generalize(segments: Iterable[Segment], epoch: int) -> tuple[Segment, ...]:
    """Return the segments with this epoch in their ids, in place of the epoch that created them."""
    return tuple(
        Segment(names.segment_id(segment.number, epoch), segment.low, segment.high)
        for segment in segments
    )


def segment_name(scope: str, stream: str, number: int, identifier: bytes) -> str:
    """Return the name of a transaction's segment for the segment with this number."""
    parent = names.segment_id(number, names.transaction_epoch(identifier))
    return names.transaction_segment_name(names.segment_name(scope, stream, parent), identifier)


@lru_cache(maxsize=256)
def number_ranges(numbers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return segment numbers as the ranges (first, end) that they fill, in ascending order.

    ``end`` is the number after the last one. The transactions of an epoch share one value.
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)


def numbers_in(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the segment numbers of such ranges."""
    return [number for first, end in ranges for number in range(first, end)]


# ---- Leases --------------------------------------------------------------------------------------


def validate_lease(lease_ms: int) -> None:
    """Raise ``InvalidRequestError`` if no transaction can be begun with this lease."""
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(
            f"a transaction's lease is {LEASE_MS_MIN} to {LEASE_MS_MAX} ms, not {lease_ms}"
        )


def execution_ms_max(lease_ms: int) -> int:
    """Return how long, in milliseconds, a transaction with this lease may be open at most."""
    return min(EXECUTION_LEASES_MAX * lease_ms, EXECUTION_MS_MAX)


def execution_ms_left(begin_lease_ms: int, lease_ms: int, *, age_ms: int) -> int:
    """Return how much execution time, in milliseconds, a transaction has after a restart.

    ``age_ms`` comes from two readings of the wall clock, which may have jumped in between. So the
    result is never less than the last lease that was granted, and never more than
    its execution time at the beginning.
    """
    whole = execution_ms_max(begin_lease_ms)
    return max(lease_ms, min(whole - age_ms, whole))


# ---- Batches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """A recorded commit: the transaction's id, and its place among the stream's commits."""

    identifier: bytes
    order: int

    @property
    def epoch(self) -> int:
        return names.transaction_epoch(self.identifier)


def choose_batch(commits: Iterable[Commit], *, begun_epoch: int | None) -> list[Commit]:
    """Return the transactions to commit next, all of one epoch, in order; none if none wait.

    ``begun_epoch`` is the epoch of the last batch, which may have been interrupted. Its
    transactions come first, except those after a transaction of a lower epoch: these were in no
    batch. Otherwise the lowest epoch comes first, so that a stream is rolled as seldom as possible.
    """
    batch: list[Commit] = []
    in_order = sorted(commits, key=lambda commit: commit.order)
    for commit in in_order:
        if begun_epoch is None or commit.epoch < begun_epoch:
            break
        if commit.epoch == begun_epoch:
            batch.append(commit)
    if not batch and in_order:
        lowest = min(commit.epoch for commit in in_order)
        batch = [commit for commit in in_order if commit.epoch == lowest]
    return batch[:BATCH_TRANSACTIONS_MAX]


# ---- Rolling -------------------------------------------------------------------------------------


def rolled_epochs(
    taken: Sequence[Segment],
    taken_epoch: Epoch,
    active: Sequence[Segment],
    active_epoch: Epoch,
    *,
    now_ms: int,
) -> tuple[Epoch, Epoch]:
    """Return the two epochs by which the transactions of an earlier epoch are merged.

    The first repeats the earlier epoch's segments under new ids: transactions are merged into them.
    The second repeats those of the active epoch, so that the stream continues as it was.
    """
    first = duplicate_epoch(
        active,
        taken,
        number=active_epoch.number + 1,
        reference=taken_epoch.reference,
        created_ms=max(active_epoch.created_ms + 1, now_ms),
    )
    second = duplicate_epoch(
        first.created,
        active,
        number=active_epoch.number + 2,
        reference=active_epoch.reference,
        created_ms=first.created_ms + 1,
    )
    return first, second
