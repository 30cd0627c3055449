"""Tells controllers which segments to split or merge, by events in the stream
``_system/_requeststream``.

Owns: finding the segments of this stream, writing events to them as any client does, and repeating
failed writes. A failure does not affect the writers of segments.

Nothing is queued here: an event that was not delivered is still due in the load monitor, and is
written in its present form. If an acknowledgement is lost, the event is written twice, and
controllers treat the second one as a repetition.

Invariants:
1. When no controller answers, or the write of an event fails, the event is written later, and
   counts as delivered only when the segment store has acknowledged it. Held by
   ``test_what_fails_is_tried_again``.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from pravega_security.tls_streams import OpenStream
from pravega_wire import commands as wire
from pravega_wire.connection import Connection, Role, append_block
from pravega_wire.errors import ProtocolError, RemoteProtocolError
from pravega_wire.hashing import routing_key_hash
from pravega_wire.names import INTERNAL_SCOPE, segment_name
from pravega_wire.scale_events import REQUEST_STREAM, encode_auto_scale
from segstore.errors import SegmentStoreError
from segstore.load.monitor import DueEvent, LoadMonitor
from segstore.tiers.api import Buffer

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

CALL_SECONDS_MAX = 20.0
PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 60.0
EVENTS_PER_APPEND_MAX = 1_000
RECEIVE_BYTES = 64 * 1024
TOKEN_METHOD = "Token"
"""The first word of the header ``authorization`` before a token of our own processes."""

logger = structlog.get_logger(__name__)


class RequestStreamError(SegmentStoreError):
    """Raised when events cannot be written now."""


@dataclass(frozen=True, slots=True)
class RequestSegment:
    """A segment of the request stream, the end of its range of keys, and the address of its segment
    store."""

    name: str
    high: float
    address: tuple[str, int]


Reply = TypeVar("Reply", bound="Message")

GetToken = Callable[[], str]
"""Returns the token that allows this process everything, or "" while authorization is off."""

LookUp = Callable[[], Sequence[RequestSegment]]
"""Returns the segments of the request stream in the order of their keys. It blocks its thread.
Raises ``RequestStreamError``."""


def no_token() -> str:
    """Return the token while authorization is off."""
    return ""


class RequestStreamWriter:
    """Writes due events to the request stream. One task calls ``run``."""

    def __init__(
        self,
        monitor: LoadMonitor,
        look_up: LookUp,
        open_stream: OpenStream = trio.open_tcp_stream,
        *,
        token: GetToken = no_token,
        random: Random | None = None,
    ) -> None:
        self._monitor = monitor
        self._look_up = look_up
        self._token = token
        self._open_stream = open_stream
        self._random = random or Random()
        self._writer_id = uuid.UUID(int=self._random.getrandbits(128), version=4).bytes

    async def run(self) -> None:
        """Write due events until cancelled."""
        pause = PAUSE_SECONDS_MIN
        while True:
            due = await self._monitor.wait_due()
            try:
                with trio.fail_after(CALL_SECONDS_MAX):
                    await self._send(due)
            except (RequestStreamError, ProtocolError, OSError, trio.TooSlowError) as error:
                reason = str(error) or "no answer in time"
                logger.warning("controllers are not told of the load now", reason=reason)
                await trio.sleep(pause * (0.5 + self._random.random() / 2))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            else:
                pause = PAUSE_SECONDS_MIN

    async def _send(self, due: Sequence[DueEvent]) -> None:
        segments = await trio.to_thread.run_sync(self._look_up, abandon_on_cancel=True)
        for segment, events in _by_segment(segments, due):
            await self._write(segment, events)
            self._monitor.record_delivery(events)
            for each in events:
                logger.info(
                    "told controllers of the load",
                    segment=each.segment,
                    direction=each.event.direction.name,
                    splits=each.event.splits,
                    silent=each.event.silent,
                )

    async def _write(self, segment: RequestSegment, due: Sequence[DueEvent]) -> None:
        """Append events to one segment of the stream, and wait until they are durable."""
        try:
            stream = await self._open_stream(*segment.address)
        except OSError as error:
            host, port = segment.address
            raise RequestStreamError(f"{host}:{port} cannot be reached: {error}") from error
        async with stream:
            wire_client = _OneAppend(stream)
            setup = await wire_client.ask(
                wire.HELLO, wire.SetupAppend(1, self._writer_id, segment.name, self._token())
            )
            if not isinstance(setup, wire.AppendSetup):
                raise RequestStreamError(f"{segment.name} takes no events: {setup}")
            number = max(setup.last_event_number, 0)
            rest = iter(due)
            while batch := list(islice(rest, EVENTS_PER_APPEND_MAX)):
                number += len(batch)
                await wire_client.append(self._writer_id, batch, number)


class _OneAppend:
    """A connection to a segment store for one exchange of requests and replies."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._connection = Connection(Role.CLIENT)
        self._replies: list[object] = []

    async def ask(self, *requests: wire.Request) -> object:
        """Send requests in one write; return the first reply other than the server's ``Hello``."""
        return await self._exchange(b"".join(map(self._connection.send, requests)))

    async def append(self, writer_id: bytes, due: Sequence[DueEvent], number: int) -> None:
        events: list[Buffer] = [encode_auto_scale(each.event) for each in due]
        frames = append_block(writer_id, events, last_event_number=number, request_id=number)
        reply = await self._exchange(frames)
        while isinstance(reply, wire.DataAppended) and reply.event_number < number:
            reply = await self._exchange(b"")
        if not isinstance(reply, wire.DataAppended):
            raise RequestStreamError(f"events were not appended: {reply}")

    async def _exchange(self, data: bytes) -> object:
        try:
            if data:
                await self._stream.send_all(data)
            while not self._replies:
                received = await self._stream.receive_some(RECEIVE_BYTES)
                if not received:
                    raise RequestStreamError("the segment store closed the connection")
                self._replies += [
                    reply
                    for reply in self._connection.receive_data(bytes(received))
                    if not isinstance(reply, wire.Hello | wire.KeepAlive)
                ]
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            raise RequestStreamError(f"the connection broke: {error}") from error
        return self._replies.pop(0)


async def report_load(
    monitor: LoadMonitor,
    look_up: LookUp,
    open_stream: OpenStream = trio.open_tcp_stream,
    *,
    token: GetToken = no_token,
) -> None:
    """Measure the load and write events for controllers, until cancelled. ``open_stream`` connects
    to the segment stores that have their stream."""
    while True:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(monitor.run)
                writer = RequestStreamWriter(monitor, look_up, open_stream, token=token)
                nursery.start_soon(writer.run)
        # A defect in this code must not end the containers.
        except Exception:
            logger.exception("the load of segments is not measured for a while")
            await trio.sleep(PAUSE_SECONDS_MAX)


def _by_segment(
    segments: Sequence[RequestSegment], due: Sequence[DueEvent]
) -> list[tuple[RequestSegment, list[DueEvent]]]:
    """Return the events of each segment of the request stream, by the hash of their routing
    keys."""
    shares: list[tuple[RequestSegment, list[DueEvent]]] = [(each, []) for each in segments]
    for event in due:
        key = routing_key_hash(event.event.routing_key)
        for segment, share in shares:
            if key < segment.high:
                share.append(event)
                break
    return [(segment, share) for segment, share in shares if share]


def look_up_with(
    find_controllers: Callable[[], Sequence[tuple[str, int]]],
    ca: Path | None = None,
    *,
    token: GetToken = no_token,
) -> LookUp:
    """Return a function that asks the controllers for the segments, one after the other until one
    answers. The client library is loaded at the first call.

    With the file ``ca`` it asks by TLS, and trusts controllers with a certificate of these CAs.
    """

    def look_up() -> Sequence[RequestSegment]:
        failure = RequestStreamError("no controller is known")
        for host, port in find_controllers():
            try:
                return _ask_controller(host, port, ca, token())
            except RequestStreamError as error:
                failure = error
        raise failure

    return look_up


def _open_channel(address: str, ca: Path | None) -> grpc.Channel:
    import grpc

    if ca is None:
        return grpc.insecure_channel(address)
    try:
        trusted = ca.read_bytes()
    except OSError as error:
        raise RequestStreamError(f"{ca} cannot be used: {error.strerror}") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted))


def _ask_controller(host: str, port: int, ca: Path | None, token: str) -> Sequence[RequestSegment]:
    import grpc

    from pravega_wire import controller_pb2 as pb

    service = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
    info = pb.StreamInfo(scope=INTERNAL_SCOPE, stream=REQUEST_STREAM)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    metadata = (("authorization", f"{TOKEN_METHOD} {token}"),) if token else None
    with _open_channel(address, ca) as channel:

        def call(method: str, request: Message, reply: type[Reply]) -> Reply:
            invoke = channel.unary_unary(
                f"/{service}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=reply.FromString,
            )
            found: Reply = invoke(request, timeout=CALL_SECONDS_MAX / 2, metadata=metadata)
            return found

        try:
            current = call("getCurrentSegments", info, pb.SegmentRanges)
            segments = []
            for each in current.segmentRanges:
                node = call("getURI", each.segmentId, pb.NodeUri)
                name = segment_name(INTERNAL_SCOPE, REQUEST_STREAM, each.segmentId.segmentId)
                high = math.inf if each.maxKey >= 1.0 else each.maxKey
                segments.append(RequestSegment(name, high, (node.endpoint, node.port)))
        except grpc.RpcError as error:
            raise RequestStreamError(
                f"the controller at {address} does not tell where the request stream is:"
                f" {error.code().name}"
            ) from error
    if not segments:
        raise RequestStreamError("the request stream is sealed")
    return sorted(segments, key=lambda segment: segment.high)
