"""A blocking client of the controller's gRPC interface.

Owns: the names of the methods, and the error for each status in a reply. The methods return values
of this module and of ``stream_settings``, never messages of gRPC. ``ControllerCalls`` makes the
calls.

Invariants:
1. When a listing returns an empty page, it ends, even if the page has a token for the next one.
   Held by ``test_a_listing_ends_at_the_first_empty_page_although_it_has_a_token``.
"""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from pravega_wire import controller_pb2 as pb
from pravega_wire.errors import (
    ProtocolError,
)
from pravega_wire.names import NAME_RULE, READER_GROUP_PREFIX, USER_NAME_RULE, scoped_name
from pravega_wire.reader_groups.settings import GroupSettings
from pravega_wire.sessions.routes import SegmentRange, Successor
from pravega_wire.transaction_ids import NO_TIME, halves_of_id, id_of_halves
from segstore_client.access.settings import ClientAccess
from segstore_client.access.tokens import DelegationTokens, StoreAccess
from segstore_client.addresses import (
    DEFAULT_CONTROLLER,
    parse_controller_address,
)
from segstore_client.controller.stream_settings import (
    StreamSettings,
    settings_of_message,
    settings_to_message,
)
from segstore_client.errors import (
    AlreadyExistsError,
    ConflictError,
    ControllerFailureError,
    NotFoundError,
    PositionGoneError,
    PravegaError,
    StoreDelayedError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

PATIENCE_SECONDS = 1.0
"""Default time, in seconds, for which a call is repeated while no controller answers."""
SCALE_POLL_SECONDS = 0.1

RETRIED_ERRORS = (
    ControllerFailureError,
    StoreDelayedError,
    UnavailableError,
    TimedOutError,
    ProtocolError,
)
"""Errors after which readers and writers try again, because a server may be restarting. Those of
sockets are ``ConnectionLostError``: another ``OSError``, such as ``TimeoutError``, is the program's
own."""


_Reply = TypeVar("_Reply", bound=Message)

_STATUS_SENTENCES: dict[str, tuple[type[PravegaError], str]] = {
    "SCOPE_NOT_FOUND": (NotFoundError, "scope {scope} does not exist"),
    "STREAM_NOT_FOUND": (NotFoundError, "stream {name} does not exist"),
    "SCOPE_EXISTS": (AlreadyExistsError, "scope {scope} exists already"),
    "STREAM_EXISTS": (AlreadyExistsError, "stream {name} exists already"),
    "INVALID_SCOPE_NAME": (UsageError, "{scope!r} cannot be the name of a scope: " + NAME_RULE),
    "INVALID_STREAM_NAME": (UsageError, "{stream!r} cannot be the name of a stream: " + NAME_RULE),
    "SCOPE_NOT_EMPTY": (ConflictError, "scope {scope} is not empty"),
    "STREAM_SEALED": (ConflictError, "stream {name} is sealed"),
    "TABLE_NOT_FOUND": (NotFoundError, "key-value table {name} does not exist"),
    "TABLE_EXISTS": (AlreadyExistsError, "key-value table {name} exists already"),
    "INVALID_TABLE_NAME": (
        UsageError,
        "{stream!r} cannot be the name of a key-value table: " + USER_NAME_RULE,
    ),
    "INVALID_RG_NAME": (
        UsageError,
        "{stream!r} cannot be the name of a reader group: " + USER_NAME_RULE,
    ),
    "RG_NOT_FOUND": (NotFoundError, "reader group {name} does not exist"),
    "STREAM_NOT_SEALED": (ConflictError, "stream {name} must be sealed first"),
}


@dataclass(frozen=True, slots=True)
class CurrentSegments:
    """The segments that accept events now, by key range; none when the stream is sealed."""

    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class HeadSegments:
    """The stream cut (segment id -> offset) at which a stream begins."""

    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A transaction that was begun: its id, and the stream's segments to which it writes."""

    identifier: bytes
    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The settings of a key-value table; lengths of keys are in bytes."""

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int
    rollover_bytes: int


class Purpose(enum.Enum):
    """The use that a client makes of a stream's segments, on which its permission depends."""

    READ = pb.StreamInfo.AccessOperation.READ
    WRITE = pb.StreamInfo.AccessOperation.WRITE
    READ_WRITE = pb.StreamInfo.AccessOperation.READ_WRITE


class ControllerClient:
    """A connection to a controller. Use it within a ``with`` block; safe for threads.

    ``parse_controller_address`` parses ``address``, which may name several controllers. For
    ``patience`` and ``first_patience``, see ``ControllerCalls``. ``access`` is who calls, and whom
    to trust where the address asks for TLS.
    """

    def __init__(
        self,
        address: str = DEFAULT_CONTROLLER,
        *,
        patience: float = PATIENCE_SECONDS,
        first_patience: float | None = None,
        access: ClientAccess | None = None,
    ) -> None:
        # A program that imports the client waits for gRPC when it connects.
        from segstore_client.controller.controller_calls import ControllerCalls

        addresses, uses_tls = parse_controller_address(address)
        access = ClientAccess() if access is None else access
        self.address = ",".join(addresses)
        self.patience = patience
        """Time, in seconds, for which a call is repeated."""
        self._credentials = access.credentials
        self._words = access.words
        self._tls = access.tls if uses_tls else None
        self._calls = ControllerCalls(
            addresses,
            tls=self._tls,
            credentials=self._credentials,
            words=access.words,
            first_patience=first_patience,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def with_patience(self, seconds: float) -> Self:
        """Return a client that calls over the same channels, and repeats a call for so long."""
        other = copy.copy(self)
        other.patience = seconds
        return other

    def close(self) -> None:
        """Close all channels. Idempotent."""
        self._calls.close()

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
        """Yield the names of all scopes, those of the system included."""
        token = ""
        while True:
            request = pb.ScopesRequest(continuationToken=pb.ContinuationToken(token=token))
            page = self._call("listScopes", request, pb.ScopesResponse, "")
            if not page.scopes:
                return
            yield from page.scopes
            token = page.continuationToken.token

    def list_streams(self, scope: str, *, tag: str | None = None) -> Iterator[str]:
        """Yield the names of a scope's streams, internal ones too, or of those with a tag."""
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

    def stream_exists(self, scope: str, stream: str) -> bool:
        """Return whether there is a stream of this name."""
        reply = self._call(
            "checkStreamExists", _info(scope, stream), pb.ExistsResponse, scope, stream
        )
        return bool(reply.exists)

    def ensure_stream(self, scope: str, stream: str, settings: StreamSettings) -> None:
        """Create a stream unless one of this name exists; that one keeps its settings."""
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
        method, kind = "truncateStream", pb.UpdateStreamStatus
        reply, told = self._calls.call(method, request, kind, scope, stream, patience=self.patience)
        _check(kind.Status.Name(reply.status), "truncate", scope, stream, reason=told.reason)

    def check_cut(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """Raise ``UsageError``, with the reason, if the stream has no such stream cut.

        Raises ``PositionGoneError`` if its segments were dropped, or are of an earlier stream.
        """
        request = pb.StreamCut(streamInfo=_info(scope, stream), cut=dict(cut))
        reply, told = self._calls.call(
            "isStreamCutValid",
            request,
            pb.StreamCutValidityResponse,
            scope,
            stream,
            patience=self.patience,
        )
        if not reply.response:
            kind = told.position_error or UsageError
            name = scoped_name(scope, stream)
            raise kind(_because(f"this is no stream cut of {name}", told.reason))

    def note_time(
        self,
        scope: str,
        stream: str,
        *,
        writer: str,
        time_ms: int,
        position: Mapping[int, int],
    ) -> None:
        """Record that a writer has written all of its events up to a time before a stream cut.

        Raises ``UsageError`` for a time, or a cut, before its last one.
        """
        request = pb.TimestampFromWriter(
            writer=writer,
            position=pb.StreamCut(streamInfo=_info(scope, stream), cut=dict(position)),
            timestamp=time_ms,
        )
        kind = pb.TimestampResponse
        reply = self._call("noteTimestampFromWriter", request, kind, scope, stream)
        if reply.result in (kind.INVALID_TIME, kind.INVALID_POSITION):
            what = "time" if reply.result == kind.INVALID_TIME else "position"
            raise UsageError(f"the {what} of a writer of {scoped_name(scope, stream)} went back")
        _check(kind.Status.Name(reply.result), "record a time of", scope, stream)

    def remove_writer(self, scope: str, stream: str, *, writer: str) -> None:
        """Let watermarks wait no more for a writer."""
        info = _info(scope, stream)
        request = pb.RemoveWriterRequest(writer=writer, stream=info)
        self._call("removeWriter", request, pb.RemoveWriterResponse, scope, stream)

    # ---- Segments --------------------------------------------------------------------------------

    def current_segments(self, scope: str, stream: str) -> CurrentSegments:
        """Return the segments that accept events now, in key order."""
        # Without an access operation, read permission is enough, and no token is in the reply.
        request = _info(scope, stream)
        reply = self._call("getCurrentSegments", request, pb.SegmentRanges, scope, stream)
        ranges = sorted(map(_range_of_message, reply.segmentRanges), key=lambda item: item.low)
        return CurrentSegments(tuple(ranges))

    def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRange, ...]:
        """Return the segments that accepted events in an epoch, in key order.

        Their ids carry this epoch: a segment that was made in an earlier one has another id there,
        with the same number.
        """
        info = _info(scope, stream, pb.StreamInfo.AccessOperation.READ)
        request = pb.GetEpochSegmentsRequest(streamInfo=info, epoch=epoch)
        reply = self._call("getEpochSegments", request, pb.SegmentRanges, scope, stream)
        ranges = map(_range_of_message, reply.segmentRanges)
        return tuple(sorted(ranges, key=lambda item: item.low))

    def head_segments(self, scope: str, stream: str) -> HeadSegments:
        """Return the segments, with offsets, at which the stream begins."""
        request = pb.GetSegmentsRequest(streamInfo=_info(scope, stream))
        reply = self._call("getSegments", request, pb.SegmentsAtTime, scope, stream)
        # Controllers send -1 for a segment of which a truncation deleted nothing.
        offsets = {item.segmentId.segmentId: max(0, item.offset) for item in reply.segments}
        return HeadSegments(offsets)

    def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[int]:
        """Return the segments between two stream cuts; an empty ``end`` is the stream's tail."""
        request = pb.StreamCutRange(
            streamInfo=_info(scope, stream, pb.StreamInfo.AccessOperation.READ)
        )
        getattr(request, "from").update(start)
        request.to.update(end)
        reply = self._call("getSegmentsBetween", request, pb.StreamCutRangeResponse, scope, stream)
        return [item.segmentId for item in reply.segments]

    def successors(self, scope: str, stream: str, segment_id: int) -> tuple[Successor, ...]:
        """Return the successors of a sealed segment; none when the stream ends with it."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        reply = self._call(
            "getSegmentsImmediatelyFollowing", request, pb.SuccessorResponse, scope, stream
        )
        return tuple(
            Successor(_range_of_message(entry.segment), frozenset(entry.value))
            for entry in reply.segments
        )

    def successors_of_gone(self, scope: str, stream: str, segment_id: int) -> tuple[Successor, ...]:
        """Return the successors of a segment that the segment stores do not have any more.

        This tells of which stream it is: raises ``EarlierStreamError`` if it was a segment of an
        earlier stream of the name, and ``PositionGoneError`` if the controller has no record of it.
        A stream that is truncated at its end keeps its last segments, so a segment that is gone and
        has no successor is not of this stream. (The original's controller only tells it so.)
        """
        found = self.successors(scope, stream, segment_id)
        if not found:
            raise PositionGoneError(
                f"the controller has no record of segment {segment_id} of stream"
                f" {scoped_name(scope, stream)}: perhaps the stream was deleted and made again"
            )
        return found

    def segment_address(self, scope: str, stream: str, segment_id: int) -> tuple[str, int]:
        """Return host and port of the segment store that serves a segment."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        reply = self._call("getURI", request, pb.NodeUri, scope, stream)
        return reply.endpoint, reply.port

    def delegation_token(self, scope: str, stream: str, purpose: Purpose) -> str:
        """Return a token for a stream's segments; "" if the controller checks no permissions."""
        request = _info(scope, stream, purpose.value)
        reply = self._call("getDelegationToken", request, pb.DelegationToken, scope, stream)
        return reply.delegationToken

    def store_access(
        self, scope: str, stream: str, purpose: Purpose, *, known: str = ""
    ) -> StoreAccess:
        """Return the way to the segment stores of a stream. Nothing is asked before it is needed.

        ``known`` is a token that another process got.
        """
        if self._credentials is None and not known:
            return StoreAccess(tls=self._tls, words=self._words)
        ask = partial(self.delegation_token, scope, stream, purpose)
        tokens = DelegationTokens(ask, known=known)
        return StoreAccess(tls=self._tls, tokens=tokens, words=self._words)

    def scale_stream(
        self,
        scope: str,
        stream: str,
        *,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        timeout: float,
    ) -> None:
        """Replace the segments ``sealed`` by new ones for the key ranges ``ranges``, and wait for
        it.

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
        """Renew a lease; return the controller's status in lower case, ``ok`` for success."""
        request = pb.PingTxnRequest(
            streamInfo=_info(scope, stream), txnId=_txn_id(identifier), lease=lease_ms
        )
        reply = self._call("pingTransaction", request, pb.PingTxnStatus, scope, stream)
        return pb.PingTxnStatus.Status.Name(reply.status).lower()

    def transaction_state(self, scope: str, stream: str, identifier: bytes) -> str:
        """Return a transaction's state in lower case; ``unknown`` if it does not exist."""
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
        """Return the id and the state of the transactions that ended last, oldest first."""
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
        return [item.segment_id for item in self.table_ranges(scope, table)]

    def table_ranges(self, scope: str, table: str) -> tuple[SegmentRange, ...]:
        """Return the segments of a key-value table with their parts of the key space, in order."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = self._call(
            "getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges, scope, table
        )
        ranges = map(_range_of_message, reply.segmentRanges)
        return tuple(sorted(ranges, key=lambda item: item.low))

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

    def create_group(
        self, config: pb.ReaderGroupConfiguration
    ) -> tuple[pb.ReaderGroupConfiguration, bool]:
        """Create a reader group; return its configuration, and whether it is this one.

        A group of the name may exist already: then it keeps its configuration.
        """
        scope, group = config.scope, config.readerGroupName
        kind = pb.CreateReaderGroupResponse
        reply = self._call("createReaderGroup", config, kind, scope, group)
        _check(kind.Status.Name(reply.status), "create", scope, group)
        return reply.config, reply.config.readerGroupId == config.readerGroupId

    def update_subscriber(
        self,
        scope: str,
        stream: str,
        group: str,
        settings: GroupSettings,
        cut: Mapping[int, int],
    ) -> None:
        """Tell up to which cut a reader group has read a stream: retention deletes what is before.

        ``group`` is the scoped name of the group, which has these settings.
        """
        request = pb.SubscriberStreamCut(
            subscriber=group,
            generation=settings.generation or 0,
            readerGroupId=str(UUID(bytes=settings.identifier)),
            streamCut=pb.StreamCut(streamInfo=_info(scope, stream), cut=dict(cut)),
        )
        kind = pb.UpdateSubscriberStatus
        reply = self._call("updateSubscriberStreamCut", request, kind, scope, stream)
        _check(kind.Status.Name(reply.status), "move a reader group of", scope, stream)

    def group_settings(self, scope: str, group: str) -> pb.ReaderGroupConfiguration:
        """Return a reader group's configuration, as the controller has it."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = self._call(
            "getReaderGroupConfig", request, pb.ReaderGroupConfigResponse, scope, group
        )
        _check(pb.ReaderGroupConfigResponse.Status.Name(reply.status), "describe", scope, group)
        return reply.config

    def update_group(self, scope: str, group: str, config: pb.ReaderGroupConfiguration) -> int:
        """Replace a reader group's configuration; return the generation of the new one.

        ``config`` has the id and the generation of the present one: ``ConflictError`` if another
        client has replaced that.
        """
        kind = pb.UpdateReaderGroupResponse
        reply = self._call("updateReaderGroup", config, kind, scope, group)
        status = kind.Status.Name(reply.status)
        if status == "INVALID_CONFIG":
            name = scoped_name(scope, group)
            raise ConflictError(f"another client has changed reader group {name}: try again")
        _check(status, "update", scope, group)
        return reply.generation

    def delete_group(self, scope: str, group: str) -> None:
        """Delete a reader group. Retention does not keep data for it any more."""
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
        return self._calls.call(method, request, reply_type, scope, stream, patience=self.patience)[
            0
        ]


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


def _because(sentence: str, reason: str) -> str:
    return f"{sentence}: {reason}" if reason else sentence


def _check(status: str, verb: str, scope: str, stream: str = "", *, reason: str = "") -> None:
    """Raise the error for a reply's status, unless it is SUCCESS."""
    if status == "SUCCESS":
        return
    name = scoped_name(scope, stream) if stream else scope
    kind, sentence = _STATUS_SENTENCES.get(
        status, (PravegaError, "the controller could not {verb} {name}")
    )
    said = sentence.format(scope=scope, stream=stream, name=name, verb=verb)
    raise kind(_because(said, reason))
