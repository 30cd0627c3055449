"""One event that somebody writes in the browser.

Owns: ``publish``. The event is a transaction: so it is written once or not at all, whatever the
writers of the stream do, and the right is that of the RPCs of transactions.

Invariants:
1. When an event is said to be written, readers get it, once. Held by
   ``test_an_event_that_is_published_is_read``.
2. When it cannot be written, its transaction is aborted. Held by
   ``test_an_event_that_cannot_be_written_leaves_no_transaction``.
"""

from __future__ import annotations

import random
import uuid
from typing import Any, Final

import trio

from pravega_controller.errors import StoreAnswerError, StoreUnavailableError
from pravega_controller.http.calls import CallOfRequest, Refusal
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.hashing import routing_key_hash
from pravega_wire.transaction_ids import NO_TIME, id_of_halves

LEASE_MS: Final = 30_000
COMMIT_SECONDS_MAX: Final = 20.0
"""Maximum time, in seconds, for a commit to be carried out."""
LOOK_SECONDS: Final = 0.05


async def publish(
    calls: CallOfRequest, scope: str, stream: str, data: bytes, routing_key: str | None
) -> int:
    """Write an event, and return the segment that has it.

    Raises ``Refusal`` and what RPCs raise.
    """
    info = pb.StreamInfo(scope=scope, stream=stream)
    begun = await calls.call(
        "createTransaction", pb.CreateTxnRequest(streamInfo=info, lease=LEASE_MS)
    )
    try:
        segment_id = _choose(begun.activeSegments, routing_key)
        name = names.transaction_segment_name(
            names.segment_name(scope, stream, segment_id),
            id_of_halves(begun.txnId.highBits, begun.txnId.lowBits),
        )
        is_written = await calls.controller.segments.append_if_at(
            name, data, expected_offset=0, writer_id=uuid.uuid4().bytes
        )
        if not is_written:
            raise Refusal(500, "the event was not written")
    except BaseException:
        with trio.CancelScope(shield=True), trio.move_on_after(COMMIT_SECONDS_MAX):
            await calls.call("abortTransaction", _request(info, begun.txnId))
        raise
    await calls.call("commitTransaction", _request(info, begun.txnId))
    await _wait_until_committed(calls, info, begun.txnId)
    return segment_id


def _request(info: pb.StreamInfo, identifier: pb.TxnId) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=info, txnId=identifier, timestamp=NO_TIME)


def _choose(ranges: Any, routing_key: str | None) -> int:
    key = random.random() if routing_key is None else routing_key_hash(routing_key)
    for each in ranges:
        if key < each.maxKey:
            return int(each.segmentId.segmentId)
    return int(ranges[-1].segmentId.segmentId)


async def _wait_until_committed(
    calls: CallOfRequest, info: pb.StreamInfo, identifier: pb.TxnId
) -> None:
    with trio.move_on_after(COMMIT_SECONDS_MAX):
        while True:
            answer = await calls.call("checkTransactionState", _request(info, identifier))
            if answer.state == pb.TxnState.COMMITTED:
                return
            if answer.state != pb.TxnState.COMMITTING:
                raise StoreAnswerError("the event was not written: its transaction has ended")
            await trio.sleep(LOOK_SECONDS)
    raise StoreUnavailableError(
        "the event is certain to be written, but it was not yet, as segment stores answer slowly"
    )
