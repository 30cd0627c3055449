"""The records that the controller stores about transactions: one class per stored value.

Owns: the formats of the tables ``transactions-<n>`` and ``outcomes-<n>`` in
docs/formats/controller-metadata.md. They are encoded like every other record.
"""

from __future__ import annotations

import msgspec

from pravega_controller.transactions import TransactionState


class TransactionRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1, omit_defaults=True):
    """A transaction that has no end yet, or whose end is not in the archive yet."""

    state: TransactionState
    created_ms: int
    begin_lease_ms: int
    """The lease it was begun with, which its execution time depends on."""
    lease_ms: int
    """The longest lease it was ever promised: what a restart gives it again."""
    order: int = 0
    """Place among the commits of its stream, if an earlier version recorded its commit."""
    writer_id: str = ""
    writer_ms: int | None = None
    """The writer's own time, given with the commit."""
    ended_ms: int = 0
    holder: str = ""
    """The controller that watches its lease, carries out its abort, and archives its outcome."""
    stream_id: str = ""
    """The id of its stream: one that was created again under the name has another. Empty if an
    earlier version recorded it; so are the ranges."""
    segment_ranges: tuple[tuple[int, int], ...] = ()
    """The numbers of the segments it was begun with, as ranges (first, end); ``end`` is the number
    after the last one. None once it has ended."""

    def may_belong_to(self, stream_id: str) -> bool:
        """Return whether the stream with this id may be its stream: records of earlier versions do
        not tell.
        """
        return self.stream_id in ("", stream_id)


class CommitLineRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1, omit_defaults=True):
    """The commits of a stream that are recorded and not carried out, and who carries them out."""

    waiting: tuple[str, ...] = ()
    """The ids of the transactions, in hexadecimal, in the order of their commits."""
    leader: str = ""
    """The controller that carries them out; none if there are none, or if it gave up."""
    epoch: int | None = None
    """The epoch whose transactions the latest batch was made of."""
    write: str = ""
    """Drawn for each write: two controllers never write the same value."""


class BegunEpochRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The epoch of a stream's latest batch, as earlier versions recorded it."""

    epoch: int


class CounterRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The numbers that transactions were given so far, for the whole cluster."""

    next_number: str
    """A number of 96 bits, in hexadecimal."""
    block: str
    """Drawn by the controller that took the last block: two never write the same value."""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The end of a transaction."""

    identifier: str
    """The id, in hexadecimal."""
    is_committed: bool
    ended_ms: int


class OutcomeRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The end of the transaction that the key names."""

    is_committed: bool
    ended_ms: int


class OutcomesRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A chunk of a stream's outcomes, in the order in which they were archived."""

    outcomes: tuple[Outcome, ...]


class ArchiveRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The chunks of outcomes that a stream has: ``first`` up to, not including, ``end``."""

    first: int
    end: int
