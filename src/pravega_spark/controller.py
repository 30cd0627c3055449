"""A blocking client of the controller: what the data source asks it.

Owns: the gRPC channel, and what each refusal means to a user.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

# The gRPC core writes its own lines to stderr otherwise.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import Message

from pravega_spark.cuts import Cut, Successor
from pravega_spark.errors import (
    NotFoundError,
    OptionError,
    PravegaError,
    RefusedError,
    UnavailableError,
)
from pravega_spark.transactions import BegunTransaction, SegmentRange
from pravega_wire import controller_pb2 as pb

CALL_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
NO_TIMESTAMP = -(2**63)
"""What a commit says whose writer tells no time."""

_SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
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
"""What may pass: the official clients try again on these too."""

_Reply = TypeVar("_Reply", bound=Message)


def parse_controller(text: str) -> str:
    """Return ``host:port`` of an address such as ``tcp://host:port``."""
    scheme, delimiter, authority = text.partition("://")
    if not delimiter:
        scheme, authority = "tcp", text
    host, _, port = authority.rpartition(":")
    if scheme not in ("tcp", "pravega") or not host or not port.isdecimal():
        raise OptionError(
            f"{text!r} is not a controller address: say something like tcp://localhost:9090"
        )
    return authority


class Controller:
    """A connection to a controller. Use it within a ``with`` block; safe for threads.

    A call that fails in a way that may pass is repeated for ``patience`` seconds.
    """

    def __init__(self, address: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self.address = parse_controller(address)
        self._patience = patience
        self._channel = grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel. Idempotent."""
        self._channel.close()

    # ---- Scopes and streams ----------------------------------------------------------------------

    def ensure_scope(self, scope: str) -> None:
        """Create a scope unless it exists."""
        reply = self._call("createScope", pb.ScopeInfo(scope=scope), pb.CreateScopeStatus, scope)
        name = pb.CreateScopeStatus.Status.Name(reply.status)
        if name not in ("SUCCESS", "SCOPE_EXISTS"):
            raise RefusedError(f"scope {scope} cannot be created: {name}")

    def ensure_stream(self, configuration: pb.StreamConfig) -> None:
        """Create a stream unless it exists."""
        info = configuration.streamInfo
        subject = f"{info.scope}/{info.stream}"
        reply = self._call("createStream", configuration, pb.CreateStreamStatus, subject)
        name = pb.CreateStreamStatus.Status.Name(reply.status)
        if name == "SCOPE_NOT_FOUND":
            raise NotFoundError(
                f"scope {info.scope} does not exist: create it, or set allow_create_scope"
            )
        if name not in ("SUCCESS", "STREAM_EXISTS"):
            raise RefusedError(f"stream {subject} cannot be created: {name}")

    def list_streams(self, scope: str) -> list[str]:
        """Return the names of a scope's streams, without those of the system."""
        names: list[str] = []
        token = ""
        while True:
            request = pb.StreamsInScopeRequest(
                scope=pb.ScopeInfo(scope=scope),
                continuationToken=pb.ContinuationToken(token=token),
            )
            page = self._call("listStreamsInScope", request, pb.StreamsInScopeResponse, scope)
            if page.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND:
                raise NotFoundError(f"scope {scope} does not exist")
            if not page.streams:
                return sorted(name for name in names if not name.startswith("_"))
            names += [info.stream for info in page.streams]
            token = page.continuationToken.token

    # ---- Segments --------------------------------------------------------------------------------

    def head(self, scope: str, stream: str) -> dict[int, int]:
        """Return the cut at which the stream begins.

        The controller says -1 for a segment of which a truncation left all bytes.
        """
        request = pb.GetSegmentsRequest(streamInfo=_info(scope, stream))
        reply = self._call("getSegments", request, pb.SegmentsAtTime, f"{scope}/{stream}")
        return {item.segmentId.segmentId: max(0, item.offset) for item in reply.segments}

    def current_segments(self, scope: str, stream: str) -> list[pb.SegmentRange]:
        """Return the segments that take events now; none when the stream is sealed."""
        reply = self._call(
            "getCurrentSegments", _info(scope, stream), pb.SegmentRanges, f"{scope}/{stream}"
        )
        return sorted(reply.segmentRanges, key=lambda item: item.minKey)

    def segments_between(self, scope: str, stream: str, start: Cut, end: Cut) -> list[int]:
        """Return the segments that lie between two cuts; an empty ``end`` is the tail."""
        request = pb.StreamCutRange(streamInfo=_info(scope, stream))
        getattr(request, "from").update(start)
        request.to.update(end)
        subject = f"{scope}/{stream}"
        reply = self._call("getSegmentsBetween", request, pb.StreamCutRangeResponse, subject)
        return [item.segmentId for item in reply.segments]

    def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """Return the segments that follow a sealed one; none when the stream ends there."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        subject = f"{scope}/{stream}"
        reply = self._call(
            "getSegmentsImmediatelyFollowing", request, pb.SuccessorResponse, subject
        )
        return [
            Successor(entry.segment.segmentId.segmentId, frozenset(entry.value))
            for entry in reply.segments
        ]

    def segment_address(self, scope: str, stream: str, segment_id: int) -> tuple[str, int]:
        """Return host and port of the segment store that serves a segment."""
        request = pb.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        reply = self._call("getURI", request, pb.NodeUri, f"{scope}/{stream}")
        return reply.endpoint, reply.port

    # ---- Transactions ----------------------------------------------------------------------------

    def begin_transaction(self, scope: str, stream: str, lease_ms: int) -> BegunTransaction:
        """Begin a transaction that ends by itself unless it is pinged or committed in time."""
        request = pb.CreateTxnRequest(streamInfo=_info(scope, stream), lease=lease_ms)
        subject = f"{scope}/{stream}"
        reply = self._call("createTransaction", request, pb.CreateTxnResponse, subject)
        return BegunTransaction(
            _id_of(reply.txnId),
            tuple(
                SegmentRange(item.segmentId.segmentId, item.minKey, item.maxKey)
                for item in reply.activeSegments
            ),
        )

    def ping_transaction(self, scope: str, stream: str, transaction: bytes, lease_ms: int) -> str:
        """Renew the lease; return the name of the answer, ``OK`` if the transaction is open."""
        request = pb.PingTxnRequest(
            streamInfo=_info(scope, stream), txnId=_message_of(transaction), lease=lease_ms
        )
        subject = f"{scope}/{stream}"
        reply = self._call("pingTransaction", request, pb.PingTxnStatus, subject)
        return pb.PingTxnStatus.Status.Name(reply.status)

    def commit_transaction(self, scope: str, stream: str, transaction: bytes) -> bool:
        """Decide that a transaction is committed; False if it has been aborted or is unknown."""
        return self._end_transaction("commitTransaction", scope, stream, transaction)

    def abort_transaction(self, scope: str, stream: str, transaction: bytes) -> bool:
        """Decide that a transaction is aborted; False if it was committed or is unknown."""
        return self._end_transaction("abortTransaction", scope, stream, transaction)

    def transaction_state(self, scope: str, stream: str, transaction: bytes) -> str:
        """Return the name of a transaction's state, such as ``COMMITTED``."""
        request = pb.TxnRequest(streamInfo=_info(scope, stream), txnId=_message_of(transaction))
        subject = f"{scope}/{stream}"
        reply = self._call("checkTransactionState", request, pb.TxnState, subject)
        return pb.TxnState.State.Name(reply.state)

    def _end_transaction(self, method: str, scope: str, stream: str, transaction: bytes) -> bool:
        request = pb.TxnRequest(
            streamInfo=_info(scope, stream),
            txnId=_message_of(transaction),
            timestamp=NO_TIMESTAMP,
        )
        reply = self._call(method, request, pb.TxnStatus, f"{scope}/{stream}")
        return bool(reply.status == pb.TxnStatus.SUCCESS)

    # ---- Key-value tables ------------------------------------------------------------------------

    def ensure_table(self, scope: str, table: str, *, key_length: int) -> list[pb.SegmentRange]:
        """Create a key-value table of one partition unless it exists; return its segments."""
        configuration = pb.KeyValueTableConfig(
            scope=scope, kvtName=table, partitionCount=1, primaryKeyLength=key_length
        )
        subject = f"{scope}/{table}"
        made = self._call(
            "createKeyValueTable", configuration, pb.CreateKeyValueTableStatus, subject
        )
        name = pb.CreateKeyValueTableStatus.Status.Name(made.status)
        if name not in ("SUCCESS", "TABLE_EXISTS"):
            raise RefusedError(f"key-value table {subject} cannot be created: {name}")
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = self._call("getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges, subject)
        return list(reply.segmentRanges)

    # ---- One call --------------------------------------------------------------------------------

    def _call(
        self, method: str, request: Message, reply_type: type[_Reply], subject: str
    ) -> _Reply:
        """Call a method, trying again while that may help."""
        invoke: Callable[..., Any] = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        deadline = time.monotonic() + self._patience
        while True:
            try:
                reply = invoke(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                if error.code() not in _PASSING or time.monotonic() > deadline:
                    raise self._explain(error, method, subject) from None
                time.sleep(RETRY_SECONDS)
                continue
            assert isinstance(reply, reply_type)
            return reply

    def _explain(self, error: Any, method: str, subject: str) -> PravegaError:
        code, details = error.code(), error.details() or "no details"
        if code is grpc.StatusCode.NOT_FOUND:
            return NotFoundError(f"{subject} does not exist at controller {self.address}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return UnavailableError(
                f"no controller answers at {self.address}: start one, or set the option controller"
            )
        return RefusedError(f"{method} of {subject} failed with {code.name}: {details}")


def stream_configuration(scope: str, stream: str, *, options: Mapping[str, int]) -> pb.StreamConfig:
    """Return the configuration of a stream to be made, from the options that name its numbers."""
    factor = options.get("default_scale_factor", 2)
    segments = options.get("default_num_segments", 1)
    policy = pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=segments
    )
    if events := options.get("default_segment_target_rate_events_per_sec", 0):
        policy.scaleType = pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC
        policy.targetRate, policy.scaleFactor = events, factor
    elif byte_rate := options.get("default_segment_target_rate_bytes_per_sec", 0):
        policy.scaleType = pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC
        policy.targetRate, policy.scaleFactor = max(1, byte_rate // 1024), factor
    configuration = pb.StreamConfig(streamInfo=_info(scope, stream), scalingPolicy=policy)
    if milliseconds := options.get("default_retention_duration_milliseconds", 0):
        configuration.retentionPolicy.retentionType = pb.RetentionPolicy.TIME
        configuration.retentionPolicy.retentionParam = milliseconds
    elif size := options.get("default_retention_size_bytes", 0):
        configuration.retentionPolicy.retentionType = pb.RetentionPolicy.SIZE
        configuration.retentionPolicy.retentionParam = size
    return configuration


def _id_of(message: pb.TxnId) -> bytes:
    return struct.pack(">qq", message.highBits, message.lowBits)


def _message_of(transaction: bytes) -> pb.TxnId:
    high, low = struct.unpack(">qq", transaction)
    return pb.TxnId(highBits=high, lowBits=low)


def _info(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)
