"""A blocking client of the controller's gRPC interface.

Owns: the channel, the names of the methods, and the error for each status.

Invariants:
1. No caller sees a message: callers get plain values of this module and ``stream_settings``.
2. Every failure is a ``PravegaError`` that names its scope or stream.
3. A listing ends at the first empty page, as the interface requires.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

# Otherwise the gRPC core writes its own lines to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import Message

from pravega_blocking.addresses import DEFAULT_CONTROLLER, parse_controller_address
from pravega_blocking.backoff import Patience
from pravega_blocking.errors import (
    AlreadyExistsError,
    ConflictError,
    ControllerFailureError,
    NotFoundError,
    PravegaError,
    RefusedError,
    TimedOutError,
    UnavailableError,
    UsageError,
)
from pravega_blocking.stream_settings import (
    StreamSettings,
    settings_of_message,
    settings_to_message,
)
from pravega_wire import controller_pb2 as pb
from pravega_wire.errors import ProtocolError
from pravega_wire.names import READER_GROUP_PREFIX, scoped_name
from pravega_wire.transaction_ids import NO_TIME, halves_of_id, id_of_halves

CALL_SECONDS = 60.0
CONNECT_SECONDS = 10.0
"""Maximum time, in seconds, of one attempt to connect: a busy server accepts long before it
answers."""
PATIENCE_SECONDS = 1.0
"""Default time, in seconds, without a controller after which a call fails."""
SCALE_POLL_SECONDS = 0.1


RETRIED_ERRORS = (ControllerFailureError, UnavailableError, TimedOutError, ProtocolError, OSError)
"""Errors that readers and writers treat as those of a server that is restarting."""

_SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

_Reply = TypeVar("_Reply", bound=Message)

_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""Statuses that may pass: the official clients try again on these, too."""

_STATUS_SENTENCES: dict[str, tuple[type[PravegaError], str]] = {
    "SCOPE_NOT_FOUND": (NotFoundError, "scope {scope} does not exist"),
    "STREAM_NOT_FOUND": (NotFoundError, "stream {name} does not exist"),
    "SCOPE_EXISTS": (AlreadyExistsError, "scope {scope} exists already"),
    "STREAM_EXISTS": (AlreadyExistsError, "stream {name} exists already"),
    "INVALID_SCOPE_NAME": (UsageError, "{scope!r} cannot be the name of a scope"),
    "INVALID_STREAM_NAME": (UsageError, "{stream!r} cannot be the name of a stream"),
    "SCOPE_NOT_EMPTY": (ConflictError, "scope {scope} is not empty"),
    "STREAM_SEALED": (ConflictError, "stream {name} is sealed"),
    "TABLE_NOT_FOUND": (NotFoundError, "key-value table {name} does not exist"),
    "TABLE_EXISTS": (AlreadyExistsError, "key-value table {name} exists already"),
    "INVALID_TABLE_NAME": (UsageError, "{stream!r} cannot be the name of a key-value table"),
    "RG_NOT_FOUND": (NotFoundError, "reader group {name} does not exist"),
    "STREAM_NOT_SEALED": (ConflictError, "stream {name} must be sealed first"),
}


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the part of the key space, [low, high), that it serves."""

    segment_id: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows ``predecessors``, all of which must be read before it."""

    range: SegmentRange
    predecessors: frozenset[int]


@dataclass(frozen=True, slots=True)
class CurrentSegments:
    """The segments that accept events now, by key range; none when the stream is sealed."""

    ranges: tuple[SegmentRange, ...]
    delegation_token: str


@dataclass(frozen=True, slots=True)
class HeadSegments:
    """The cut at which a stream begins: offsets by segment id."""

    offsets: Mapping[int, int]
    delegation_token: str


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A transaction as the controller answered its begin: its id, and its segments by key range."""

    identifier: bytes
    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The settings of a key-value table; lengths of keys are in bytes."""

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int
    rollover_bytes: int


class ControllerClient:
    """A connection to a controller. Use it within a ``with`` block; safe for threads.

    ``parse_controller_address`` parses ``address``. A call that fails in a way that may pass is
    repeated for ``patience`` seconds, and then raises ``UnavailableError`` or
    ``ControllerFailureError``; without an answer within ``CALL_SECONDS`` it raises
    ``TimedOutError``.
    """

    def __init__(
        self, address: str = DEFAULT_CONTROLLER, *, patience: float = PATIENCE_SECONDS
    ) -> None:
        self.address = parse_controller_address(address)
        self._patience = patience
        self._channel = grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
                # A controller that is back is tried again soon.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # In spite of its name: the maximum time of an attempt to connect.
                ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
            ],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel. Idempotent."""
        self._channel.close()

    # ---- Scopes ----------------------------------------------------------------------------------

    def create_scope(self, scope: str) -> None:
        reply = self._call("createScope", pb.ScopeInfo(scope=scope), pb.CreateScopeStatus, scope)
        _check(pb.CreateScopeStatus.Status.Name(reply.status), "create", scope)

    def ensure_scope(self, scope: str) -> None:
        """Create a scope unless it exists."""
        with suppress(AlreadyExistsError):
            self.create_scope(scope)

    def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete an empty scope; with ``recursive`` also one with contents."""
        method = "deleteScopeRecursive" if recursive else "deleteScope"
        reply = self._call(method, pb.ScopeInfo(scope=scope), pb.DeleteScopeStatus, scope)
        _check(pb.DeleteScopeStatus.Status.Name(reply.status), "delete", scope)

    def list_scopes(self) -> Iterator[str]:
        """Return the names of all scopes, with those of the system."""
        token = ""
        while True:
            request = pb.ScopesRequest(continuationToken=pb.ContinuationToken(token=token))
            page = self._call("listScopes", request, pb.ScopesResponse, "")
            if not page.scopes:
                return
            yield from page.scopes
            token = page.continuationToken.token

    def list_streams(self, scope: str, *, tag: str | None = None) -> Iterator[str]:
        """Return the names of a scope's streams, internal ones too, or of those with a tag."""
        token = ""
        while True:
            page = self._list_streams_page(scope, tag, token)
            _check(pb.StreamsInScopeResponse.Status.Name(page.status), "list", scope)
            if not page.streams:
                return
            yield from (info.stream for info in page.streams)
            token = page.continuationToken.token

    def _list_streams_page(
        self, scope: str, tag: str | None, token: str
    ) -> pb.StreamsInScopeResponse:
        continuation = pb.ContinuationToken(token=token)
        info = pb.ScopeInfo(scope=scope)
        request: Message
        if tag is None:
            method = "listStreamsInScope"
            request = pb.StreamsInScopeRequest(scope=info, continuationToken=continuation)
        else:
            method = "listStreamsInScopeForTag"
            request = pb.StreamsInScopeWithTagRequest(
                scope=info, tag=tag, continuationToken=continuation
            )
        return self._call(method, request, pb.StreamsInScopeResponse, scope)

    # ---- Streams ---------------------------------------------------------------------------------

    def create_stream(self, scope: str, stream: str, settings: StreamSettings) -> None:
        request = settings_to_message(scope, stream, settings)
        reply = self._call("createStream", request, pb.CreateStreamStatus, scope, stream)
        _check(pb.CreateStreamStatus.Status.Name(reply.status), "create", scope, stream)

    def ensure_stream(self, scope: str, stream: str, settings: StreamSettings) -> None:
        """Create a stream unless one exists, whatever its settings."""
        with suppress(AlreadyExistsError):
            self.create_stream(scope, stream, settings)

    def update_stream(self, scope: str, stream: str, settings: StreamSettings) -> None:
        request = settings_to_message(scope, stream, settings)
        reply = self._call("updateStream", request, pb.UpdateStreamStatus, scope, stream)
        _check(pb.UpdateStreamStatus.Status.Name(reply.status), "update", scope, stream)

    def stream_settings(self, scope: str, stream: str) -> StreamSettings:
        reply = self._call(
            "getStreamConfiguration", _info(scope, stream), pb.StreamConfig, scope, stream
        )
        return settings_of_message(reply)

    def seal_stream(self, scope: str, stream: str) -> None:
        """Seal a stream, which then accepts no more events; sealing it twice is no error."""
        reply = self._call("sealStream", _info(scope, stream), pb.UpdateStreamStatus, scope, stream)
        _check(pb.UpdateStreamStatus.Status.Name(reply.status), "seal", scope, stream)

    def delete_stream(self, scope: str, stream: str) -> None:
        """Delete a sealed stream."""
        reply = self._call(
            "deleteStream", _info(scope, stream), pb.DeleteStreamStatus, scope, stream
        )
        _check(pb.DeleteStreamStatus.Status.Name(reply.status), "delete", scope, stream)

    def truncate_stream(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """Truncate a stream at a stream cut (segment id -> offset): delete the events before it."""
        request = pb.StreamCut(streamInfo=_info(scope, stream), cut=dict(cut))
        reply = self._call("truncateStream", request, pb.UpdateStreamStatus, scope, stream)
        _check(pb.UpdateStreamStatus.Status.Name(reply.status), "truncate", scope, stream)

    # ---- Segments --------------------------------------------------------------------------------

    def current_segments(self, scope: str, stream: str) -> CurrentSegments:
        """Return the segments that accept events now, in key order."""
        request = _info(scope, stream, pb.StreamInfo.AccessOperation.READ_WRITE)
        reply = self._call("getCurrentSegments", request, pb.SegmentRanges, scope, stream)
        ranges = sorted(map(_range_of_message, reply.segmentRanges), key=lambda item: item.low)
        return CurrentSegments(tuple(ranges), reply.delegationToken)

    def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRange, ...]:
        """Return the segments that accepted events in an epoch, in key order."""
        info = _info(scope, stream, pb.StreamInfo.AccessOperation.READ)
        request = pb.GetEpochSegmentsRequest(streamInfo=info, epoch=epoch)
        reply = self._call("getEpochSegments", request, pb.SegmentRanges, scope, stream)
        ranges = map(_range_of_message, reply.segmentRanges)
        return tuple(sorted(ranges, key=lambda item: item.low))

    def head_segments(self, scope: str, stream: str) -> HeadSegments:
        """Return the segments, with offsets, at which the stream begins."""
        request = pb.GetSegmentsRequest(
            streamInfo=_info(scope, stream, pb.StreamInfo.AccessOperation.READ)
        )
        reply = self._call("getSegments", request, pb.SegmentsAtTime, scope, stream)
        # Controllers send -1 for a segment that a truncation left whole.
        offsets = {item.segmentId.segmentId: max(0, item.offset) for item in reply.segments}
        return HeadSegments(offsets, reply.delegationToken)

    def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[int]:
        """Return the segments that lie between two cuts; an empty ``end`` is the tail."""
        request = pb.StreamCutRange(
            streamInfo=_info(scope, stream, pb.StreamInfo.AccessOperation.READ)
        )
        getattr(request, "from").update(start)
        request.to.update(end)
        reply = self._call("getSegmentsBetween", request, pb.StreamCutRangeResponse, scope, stream)
        return [item.segmentId for item in reply.segments]

    def successors(self, scope: str, stream: str, segment_id: int) -> tuple[Successor, ...]:
        """Return the segments that follow a sealed one; none when the stream ends there."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        reply = self._call(
            "getSegmentsImmediatelyFollowing", request, pb.SuccessorResponse, scope, stream
        )
        return tuple(
            Successor(_range_of_message(entry.segment), frozenset(entry.value))
            for entry in reply.segments
        )

    def segment_address(self, scope: str, stream: str, segment_id: int) -> tuple[str, int]:
        """Return host and port of the segment store that serves a segment."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        reply = self._call("getURI", request, pb.NodeUri, scope, stream)
        return reply.endpoint, reply.port

    def scale_stream(
        self,
        scope: str,
        stream: str,
        *,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        timeout: float,
    ) -> None:
        """Replace the segments ``sealed`` by new ones for ``ranges``, and wait until it is done.

        ``timeout`` is in seconds.
        """
        request = pb.ScaleRequest(
            streamInfo=_info(scope, stream),
            sealedSegments=sealed,
            newKeyRanges=[
                pb.ScaleRequest.KeyRangeEntry(start=start, end=end) for start, end in ranges
            ],
            scaleTimestamp=int(time.time() * 1000),
        )
        reply = self._call("scale", request, pb.ScaleResponse, scope, stream)
        status = pb.ScaleResponse.ScaleStreamStatus.Name(reply.status)
        if status == "PRECONDITION_FAILED":
            raise ConflictError(
                f"stream {scoped_name(scope, stream)} cannot be scaled like this: the segments are"
                " not its current ones, the new ranges do not cover the same keys, or there would"
                " be fewer segments than its policy wants"
            )
        if status != "STARTED":
            raise PravegaError(
                f"the controller could not scale stream {scoped_name(scope, stream)}"
            )
        self._wait_for_scale(scope, stream, reply.epoch, timeout)

    def _wait_for_scale(self, scope: str, stream: str, epoch: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        request = pb.ScaleStatusRequest(streamInfo=_info(scope, stream), epoch=epoch)
        while True:
            reply = self._call("checkScale", request, pb.ScaleStatusResponse, scope, stream)
            status = pb.ScaleStatusResponse.ScaleStatus.Name(reply.status)
            if status == "SUCCESS":
                return
            if status != "IN_PROGRESS":
                raise PravegaError(f"scaling {scoped_name(scope, stream)} ended with {status}")
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"stream {scoped_name(scope, stream)} is still scaling after {timeout:g} s"
                )
            time.sleep(SCALE_POLL_SECONDS)

    # ---- Transactions ----------------------------------------------------------------------------

    def begin_transaction(self, scope: str, stream: str, lease_ms: int) -> BegunTransaction:
        """Begin a transaction that is aborted unless it is pinged or committed in time."""
        request = pb.CreateTxnRequest(streamInfo=_info(scope, stream), lease=lease_ms)
        reply = self._call("createTransaction", request, pb.CreateTxnResponse, scope, stream)
        return BegunTransaction(
            id_of_halves(reply.txnId.highBits, reply.txnId.lowBits),
            tuple(map(_range_of_message, reply.activeSegments)),
        )

    def ping_transaction(self, scope: str, stream: str, identifier: bytes, lease_ms: int) -> str:
        """Renew a lease; return the answer in small letters, ``ok`` if the transaction is open."""
        request = pb.PingTxnRequest(
            streamInfo=_info(scope, stream), txnId=_txn_id(identifier), lease=lease_ms
        )
        reply = self._call("pingTransaction", request, pb.PingTxnStatus, scope, stream)
        return pb.PingTxnStatus.Status.Name(reply.status).lower()

    def transaction_state(self, scope: str, stream: str, identifier: bytes) -> str:
        """Return a transaction's state in small letters; ``unknown`` where there is none."""
        request = pb.TxnRequest(streamInfo=_info(scope, stream), txnId=_txn_id(identifier))
        reply = self._call("checkTransactionState", request, pb.TxnState, scope, stream)
        return pb.TxnState.State.Name(reply.state).lower()

    def commit_transaction(self, scope: str, stream: str, identifier: bytes) -> bool:
        """Record that a transaction commits, and return True; return False if it aborts instead."""
        return self._end_transaction("commitTransaction", scope, stream, identifier)

    def abort_transaction(self, scope: str, stream: str, identifier: bytes) -> bool:
        """Record that a transaction aborts, and return True; return False if it commits instead."""
        return self._end_transaction("abortTransaction", scope, stream, identifier)

    def completed_transactions(self, scope: str, stream: str) -> list[tuple[bytes, str]]:
        """Return the transactions that ended last, oldest first: id, and state in words."""
        request = pb.ListCompletedTxnRequest(streamInfo=_info(scope, stream))
        reply = self._call(
            "listCompletedTransactions", request, pb.ListCompletedTxnResponse, scope, stream
        )
        return [
            (
                id_of_halves(one.txnId.highBits, one.txnId.lowBits),
                pb.TxnResponse.Status.Name(one.status).lower(),
            )
            for one in reply.response
        ]

    def _end_transaction(self, method: str, scope: str, stream: str, identifier: bytes) -> bool:
        request = pb.TxnRequest(
            streamInfo=_info(scope, stream), txnId=_txn_id(identifier), timestamp=NO_TIME
        )
        reply = self._call(method, request, pb.TxnStatus, scope, stream)
        return reply.status == pb.TxnStatus.SUCCESS

    # ---- Key-value tables ------------------------------------------------------------------------

    def create_table(
        self, scope: str, table: str, *, partitions: int, primary_key: int, secondary_key: int
    ) -> None:
        """Create a key-value table; key lengths are in bytes."""
        request = pb.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=partitions,
            primaryKeyLength=primary_key,
            secondaryKeyLength=secondary_key,
        )
        reply = self._call(
            "createKeyValueTable", request, pb.CreateKeyValueTableStatus, scope, table
        )
        _check(pb.CreateKeyValueTableStatus.Status.Name(reply.status), "create", scope, table)

    def table_segments(self, scope: str, table: str) -> list[int]:
        """Return the segments of a key-value table, one for each of its partitions."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = self._call(
            "getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges, scope, table
        )
        return [item.segmentId.segmentId for item in reply.segmentRanges]

    def list_tables(self, scope: str) -> Iterator[str]:
        """Return the names of a scope's key-value tables."""
        token = ""
        while True:
            request = pb.KVTablesInScopeRequest(
                scope=pb.ScopeInfo(scope=scope),
                continuationToken=pb.ContinuationToken(token=token),
            )
            page = self._call(
                "listKeyValueTablesInScope", request, pb.KVTablesInScopeResponse, scope
            )
            _check(pb.KVTablesInScopeResponse.Status.Name(page.status), "list", scope)
            if not page.kvtables:
                return
            yield from (info.kvtName for info in page.kvtables)
            token = page.continuationToken.token

    def table_settings(self, scope: str, table: str) -> TableSettings:
        """Return the settings of a key-value table."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = self._call(
            "getKeyValueTableConfiguration", request, pb.KeyValueTableConfigResponse, scope, table
        )
        _check(pb.KeyValueTableConfigResponse.Status.Name(reply.status), "describe", scope, table)
        found = reply.config
        return TableSettings(
            found.partitionCount,
            found.primaryKeyLength,
            found.secondaryKeyLength,
            found.rolloverSizeBytes,
        )

    def delete_table(self, scope: str, table: str) -> None:
        """Delete a key-value table with everything in it."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = self._call("deleteKeyValueTable", request, pb.DeleteKVTableStatus, scope, table)
        _check(pb.DeleteKVTableStatus.Status.Name(reply.status), "delete", scope, table)

    # ---- Reader groups ---------------------------------------------------------------------------

    def list_groups(self, scope: str) -> Iterator[str]:
        """Return the names of a scope's reader groups, each of which has a stream for its state."""
        for stream in self.list_streams(scope):
            if stream.startswith(READER_GROUP_PREFIX):
                yield stream.removeprefix(READER_GROUP_PREFIX)

    def group_settings(self, scope: str, group: str) -> pb.ReaderGroupConfiguration:
        """Return a reader group's configuration, as the controller has it."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = self._call(
            "getReaderGroupConfig", request, pb.ReaderGroupConfigResponse, scope, group
        )
        _check(pb.ReaderGroupConfigResponse.Status.Name(reply.status), "describe", scope, group)
        return reply.config

    def delete_group(self, scope: str, group: str) -> None:
        """Delete a reader group, and let retention wait for it no more."""
        found = self.group_settings(scope, group)
        request = pb.ReaderGroupInfo(
            scope=scope,
            readerGroup=group,
            readerGroupId=found.readerGroupId,
            generation=found.generation,
        )
        reply = self._call("deleteReaderGroup", request, pb.DeleteReaderGroupStatus, scope, group)
        _check(pb.DeleteReaderGroupStatus.Status.Name(reply.status), "delete", scope, group)

    # ---- One call --------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        request: Message,
        reply_type: type[_Reply],
        scope: str,
        stream: str = "",
    ) -> _Reply:
        invoke: Callable[..., Any] = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        patience = Patience(self._patience)
        while True:
            try:
                reply = invoke(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                # A controller that is being restarted is back in a moment.
                if _may_pass(error) and patience.wait():
                    continue
                raise self._explain(error, method, scope, stream) from error
            assert isinstance(reply, reply_type)
            return reply

    def _explain(self, error: grpc.RpcError, method: str, scope: str, stream: str) -> PravegaError:
        assert isinstance(error, grpc.Call)
        code, details = error.code(), error.details() or "no details"
        subject = f"stream {scoped_name(scope, stream)}" if stream else f"scope {scope}"
        if code is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"no controller answers at {self.address}")
        if code is grpc.StatusCode.NOT_FOUND:
            return NotFoundError(f"{subject} does not exist")
        if code is grpc.StatusCode.ALREADY_EXISTS:
            return AlreadyExistsError(f"{subject} exists already")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOutError(
                f"the controller at {self.address} did not answer {method} in {CALL_SECONDS:g} s"
            )
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return UsageError(f"the controller refused {method} for {subject}: {details}")
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            return RefusedError(f"no permission for {method} of {subject}: {details}")
        return ControllerFailureError(f"{method} for {subject} failed with {code.name}: {details}")


def _may_pass(error: grpc.RpcError) -> bool:
    assert isinstance(error, grpc.Call)
    return error.code() in _PASSING


def _info(
    scope: str,
    stream: str,
    access: pb.StreamInfo.AccessOperation = pb.StreamInfo.AccessOperation.NONE,
) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream, accessOperation=access)


def _txn_id(identifier: bytes) -> pb.TxnId:
    high, low = halves_of_id(identifier)
    return pb.TxnId(highBits=high, lowBits=low)


def _range_of_message(message: pb.SegmentRange) -> SegmentRange:
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def _check(status: str, verb: str, scope: str, stream: str = "") -> None:
    """Raise the error for a reply's status, unless it is SUCCESS."""
    if status == "SUCCESS":
        return
    name = scoped_name(scope, stream) if stream else scope
    kind, sentence = _STATUS_SENTENCES.get(
        status, (PravegaError, "the controller could not {verb} {name}")
    )
    raise kind(sentence.format(scope=scope, stream=stream, name=name, verb=verb))
