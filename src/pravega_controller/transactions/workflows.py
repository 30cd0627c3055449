"""Assembles the parts that carry out the recorded commits and aborts of transactions.

Owns: ``TransactionWorkflows``, the parts of one controller.

    OPEN -> COMMITTING -> merged in every segment                     -> COMMITTED -> archived
         -> ABORTING   -> its segments deleted                        -> ABORTED   -> archived

| what happens                                   | where                |
|------------------------------------------------|----------------------|
| a record changes, a controller watches a lease | ``held_transactions`` |
| a commit is recorded, and waits in its line    | ``commits``          |
| a batch is merged, and recorded as committed   | ``commit_batches``   |
| the epoch of a batch is not active any more    | ``rolls``            |
| an abort is recorded, and segments deleted     | ``aborts``           |
| a lease ends                                   | ``expired_leases``   |
| a begin goes wrong                             | ``failed_begins``    |
| a controller dies, or starts                   | ``adoption``         |
| a stream is sealed or deleted                  | ``stream_ends``      |
| an outcome is archived                         | ``archiving``        |

A decision is recorded before any work for it begins, and each step after it may be repeated
(``rules.transactions.NEXT_STATES`` has all steps). A controller reads all transactions at its
start, and continues commits and aborts that were recorded before a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from pravega_controller.background.background import Background
from pravega_controller.background.late_segments import LateSegments
from pravega_controller.background.members import Members
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.transaction_outcomes import OutcomeArchive
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.adoption import Adoption
from pravega_controller.transactions.archiving import Archiving
from pravega_controller.transactions.commit_batches import CommitBatches
from pravega_controller.transactions.commits import Commits
from pravega_controller.transactions.expired_leases import ExpiredLeases
from pravega_controller.transactions.failed_begins import FailedBegins
from pravega_controller.transactions.held_transactions import DecidedWork, HeldTransactions
from pravega_controller.transactions.open_transactions import StreamTransactions, Transaction
from pravega_controller.transactions.rolls import Rolls
from pravega_controller.transactions.stream_ends import StreamEnds
from pravega_controller.watermarks.watermarks import Watermarks


@dataclass(frozen=True, slots=True)
class TransactionWorkflows:
    """The parts that carry out commits, aborts and ended leases of transactions."""

    held: HeldTransactions
    commits: Commits
    rolls: Rolls
    aborts: Aborts
    expired_leases: ExpiredLeases
    failed_begins: FailedBegins
    adoption: Adoption
    stream_ends: StreamEnds
    archiving: Archiving

    async def run(self) -> None:
        """Watch leases and archive outcomes; runs forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.expired_leases.run)
            nursery.start_soon(self.archiving.run)


def assemble_workflows(
    store: MetadataStore,
    segments: SegmentClient,
    streams: StreamWorkflows,
    transactions: TransactionStore,
    archive: OutcomeArchive,
    background: Background,
    watermarks: Watermarks,
    members: Members,
    late: LateSegments,
    *,
    now_ms: Callable[[], int],
) -> TransactionWorkflows:
    """Make the parts of one controller."""

    # A record that is read again may contain a decision, which is then carried out.
    def start_commits(of_stream: StreamTransactions) -> None:
        commits.start(of_stream)

    def start_leading(of_stream: StreamTransactions) -> None:
        commits.start_leading(of_stream)

    def start_aborts(of_stream: StreamTransactions, decided: Sequence[Transaction]) -> None:
        aborts.start(of_stream, decided)

    work = DecidedWork(start_commits, start_leading, start_aborts)
    held = HeldTransactions(store, transactions, members, background, work, now_ms=now_ms)
    aborts = Aborts(held, store, segments, transactions, late, background)
    batches = CommitBatches(held, segments, transactions, watermarks)
    rolls = Rolls(held, batches, streams)
    commits = Commits(held, aborts, batches, rolls, store, streams.work, transactions, background)
    archiving = Archiving(held, store, transactions, archive)
    return TransactionWorkflows(
        held,
        commits,
        rolls,
        aborts,
        ExpiredLeases(held, aborts, background),
        FailedBegins(held, aborts, transactions, background),
        Adoption(held, commits, transactions, background),
        StreamEnds(held, aborts, commits, archiving, store, transactions, archive),
        archiving,
    )
