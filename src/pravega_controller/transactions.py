"""The rules of transactions, as pure functions: ids, names, leases, batches, and rolled epochs.

Owns: the content of a transaction's id, the bounds of its lease, the choice of the transactions
that are committed next, and the epochs by which a stream merges transactions of an earlier epoch.

A transaction is begun on a stream's active epoch and has one segment for each segment of that
epoch. Its id carries the epoch's *reference epoch*: an epoch made to receive transactions repeats
the segments of an earlier one under new ids, and transactions begun on either belong together.

Invariants:
1. The segments of a transaction are named after its id: segment number of the parent, epoch of the
   id. So a client that knows the id finds them, whatever happened to the stream since.
2. A lease ends only by a monotonic clock. The wall clock only decides how much execution time is
   left after a restart, and then a transaction gets at least its whole lease.
3. Transactions of one epoch are committed in the order in which their commits were recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pravega_controller.errors import InvalidRequestError
from pravega_controller.history import Epoch, duplicate_epoch
from pravega_controller.streams import Segment
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


# ---- Ids and names -------------------------------------------------------------------------------


def make_id(epoch: int, counter: int) -> bytes:
    """Return a transaction's id: the reference epoch on which it is begun, and its own number."""
    if not 0 <= epoch < 2**31:
        raise InvalidRequestError(f"there is no epoch {epoch}")
    assert 0 <= counter < 2**COUNTER_BITS
    return epoch.to_bytes(4, "big") + counter.to_bytes(12, "big")


def generalize(segments: Iterable[Segment], epoch: int) -> tuple[Segment, ...]:
    """Return the segments under ids that carry this epoch instead of the one that created them."""
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
    result is never less than the last lease that the transaction was promised, and never more than
    its execution time at the beginning.
    """
    whole = execution_ms_max(begin_lease_ms)
    return max(lease_ms, min(whole - age_ms, whole))


# ---- Batches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction whose commit is recorded: its id, and its place among the stream's commits."""

    identifier: bytes
    order: int

    @property
    def epoch(self) -> int:
        return names.transaction_epoch(self.identifier)


def choose_batch(commits: Iterable[Commit], *, begun_epoch: int | None) -> list[Commit]:
    """Return the transactions to commit next, in order; none if there are none.

    All are of one epoch: the one of a batch that may have been begun before a crash, else the
    lowest, so that a stream is rolled as seldom as possible. Those of the begun epoch that come
    after one of a lower epoch wait until that is committed: no batch had them before it.
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
