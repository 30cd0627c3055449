"""Assembles the parts that change streams in several steps.

Owns: ``StreamWorkflows``, the parts of one controller.

| what happens                                        | where             |
|-----------------------------------------------------|-------------------|
| work is recorded, taken over, finished, given up    | ``pending_work``  |
| a stream is created                                 | ``creation``      |
| a stream is scaled, truncated, updated, sealed      | ``changes``       |
| a stream is deleted                                 | ``deletion``      |
| segments are created, sealed, deleted, also late    | ``stream_segments`` |
| transactions of an earlier epoch are merged         | ``transactions.rolls`` |

``metadata.records.NEXT_WORKFLOWS`` has the workflows that may follow each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.background.members import Members
from pravega_controller.metadata.records import (
    Create,
    Delete,
    IntentRecord,
    Rolling,
    Scale,
    Seal,
    StreamWorkflow,
    Truncate,
    Update,
)
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_controller.streams.changes import Changes, RegisterTruncation
from pravega_controller.streams.creation import Creation
from pravega_controller.streams.deletion import Deletion
from pravega_controller.streams.pending_work import PendingWork, Step
from pravega_controller.streams.stream_segments import StreamSegments
from pravega_controller.streams.tag_index import TagIndex


@dataclass(frozen=True, slots=True)
class TransactionSteps:
    """The steps of transactions that a stream's workflows need."""

    end_all: Callable[[Stream], Awaitable[Stream]]
    """Ends every transaction; the stream is being sealed."""
    forget_all: Callable[[Stream], Awaitable[None]]
    """Removes the stored records of transactions; the stream is being deleted."""
    finish_roll: Callable[[Stream, Rolling], Awaitable[Stream]]
    """Merges transactions of an earlier epoch into a stream."""


@dataclass(frozen=True, slots=True)
class StreamWorkflows:
    """The parts that change streams."""

    work: PendingWork
    segments: StreamSegments
    creation: Creation
    deletion: Deletion


def assemble_workflows(
    store: MetadataStore,
    client: SegmentClient,
    tags: TagIndex,
    members: Members,
    late: LateSegments,
    transactions: TransactionSteps,
    *,
    now_ms: Callable[[], int],
    finish_later: Callable[[IntentRecord], None],
    register_truncation: RegisterTruncation,
) -> StreamWorkflows:
    """Make the parts of one controller."""

    def find_step(work: StreamWorkflow | Rolling) -> Step:
        return steps[type(work)]

    segments = StreamSegments(store, client, late)
    work = PendingWork(store, segments, members, find_step=find_step, finish_later=finish_later)
    creation = Creation(work, store, segments, tags, members, now_ms=now_ms)
    deletion = Deletion(work, store, segments, tags, transactions.forget_all)
    changes = Changes(
        store,
        segments,
        client,
        tags,
        now_ms=now_ms,
        register_truncation=register_truncation,
        end_transactions=transactions.end_all,
    )
    steps: dict[type[StreamWorkflow | Rolling], Step] = {
        Create: creation.step,
        Scale: changes.scale,
        Truncate: changes.truncate,
        Update: changes.update,
        Seal: changes.seal,
        Delete: deletion.step,
        Rolling: transactions.finish_roll,
    }
    return StreamWorkflows(work, segments, creation, deletion)
