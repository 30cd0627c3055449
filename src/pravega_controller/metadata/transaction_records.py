"""The records that the controller stores about transactions: one class per stored value.

Owns: the formats of the tables ``transactions-<n>`` and ``outcomes-<n>`` in
docs/formats/controller-metadata.md. They are encoded like every other record.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from pravega_controller.rules.transactions import TransactionState


class TransactionRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1, omit_defaults=True):
    """A transaction that has not ended, or whose outcome is not in the archive yet."""

    state: TransactionState
    created_ms: int
    begin_lease_ms: int
    """The lease with which the transaction was begun. Its execution time depends on this."""
    lease_ms: int
    """The longest lease that was granted; after a restart the transaction gets it again."""
    writer_id: str = ""
    writer_ms: int | None = None
    """The writer's own time, given with the commit."""
    ended_ms: int = 0
    holder: str = ""
    """The controller that watches its lease, carries out its abort, and archives its outcome."""
    stream_id: str = ""
    """The id of its stream: a stream created again with the same name has another id."""
    segment_ranges: tuple[tuple[int, int], ...] = ()
    """The numbers of its segments, as ranges (first, end); ``end`` is the number after the last.
    Empty after the transaction has ended."""


def dated(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the record with ``now_ms`` as its beginning if that lies in the future.

    Such a time comes from a clock that was ahead; the execution time would end too late.
    """
    return structs.replace(record, created_ms=min(record.created_ms, now_ms))


class CommitLineRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1, omit_defaults=True):
    """The commits of a stream that are recorded, but not yet carried out, and their leader."""

    waiting: tuple[str, ...] = ()
    """The ids of the transactions, in hexadecimal, in the order of their commits."""
    leader: str = ""
    """The controller that carries out the commits; empty if none wait, or if it gave up."""
    epoch: int | None = None
    """The epoch of the transactions in the latest batch."""


class CounterRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The next free number for transactions of the whole cluster."""

    next_number: str
    """A number of 96 bits, in hexadecimal."""
    block: str
    """A random value that is not used. Version 0.2.0 does not read a record without it."""


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
    """The numbers of a stream's chunks of outcomes: ``first`` up to, not including, ``end``."""

    first: int
    end: int
