"""Generates stream cuts of known streams, valid and broken ones, and asks a server about them.

Owns: the streams, the cuts, and the questions. The streams get the same events everywhere, so that
their segments have the same ids and lengths on every server.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
from google.protobuf.message import Message

from pravega_wire import controller_pb2 as pb
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, ScalingKind, StreamSettings
from segstore_client.cuts.segment_info import segment_infos

CALL_SECONDS = 60.0
SCALE_SECONDS = 60.0
NEVER = 2**40 + 7
"""The id of a segment that no stream here has, in an epoch that none has."""
SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name

Ranges = Sequence[tuple[float, float]]
Cut = Mapping[int, int]

WORLDS: dict[str, tuple[int, tuple[tuple[tuple[int, ...], Ranges], ...]]] = {
    "one": (1, ()),
    "split": (1, (((0,), ((0.0, 0.5), (0.5, 1.0))),)),
    "half": (2, (((0,), ((0.0, 0.25), (0.25, 0.5))),)),
    "merged": (1, (((0,), ((0.0, 0.5), (0.5, 1.0))), ((1, 2), ((0.0, 1.0),)))),
    "long": (
        1,
        (
            ((0,), ((0.0, 0.5), (0.5, 1.0))),
            ((1, 2), ((0.0, 1.0),)),
            ((3,), ((0.0, 0.5), (0.5, 1.0))),
            ((4,), ((0.0, 0.125), (0.125, 0.5))),
        ),
    ),
}
"""The number of first segments of a stream, and its scales: the numbers of segments that end, and
the key ranges of new ones. Events are written before the first scale and after each."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a stream, and whether it ended."""

    low: float
    high: float
    length: int
    is_sealed: bool


@dataclass
class World:
    """A stream as it was made on a server."""

    name: str
    segments: dict[int, Segment] = field(default_factory=dict)
    scales: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def draw(self, random: Random) -> dict[int, int]:
        """Return a cut where a reader can be."""
        new = {segment for _, made in self.scales for segment in made}
        named = set(self.segments) - new
        for gone, made in self.scales:
            if set(gone) <= named and random.random() < 0.7:
                named = named - set(gone) | set(made)
        return {each: self._offset(random, self.segments[each].length) for each in sorted(named)}

    def _offset(self, random: Random, length: int) -> int:
        return random.choice([0, length, random.randint(0, length)])

    def break_it(self, random: Random, cut: Cut) -> dict[int, int]:
        """Return a cut with something wrong, or with -1."""
        broken = dict(cut)
        one = random.choice(list(broken))
        other = random.choice(list(self.segments))
        match random.randrange(11):
            case 0:
                broken[one] = -1
            case 1:
                broken = dict.fromkeys(broken, -1)
            case 2:
                broken[one] = random.choice([-2, -7, -(2**63)])
            case 3:
                broken[one] = self.segments[one].length + random.choice([1, 100, 2**40])
            case 4:
                del broken[one]
            case 5:
                broken[other] = self._offset(random, self.segments[other].length)
            case 6:
                broken[NEVER] = 0
            case 7:
                broken[max(self.segments) + 50] = 0
            case 8:
                broken[other] = -1
            case 9:
                del broken[one]
                broken[other] = -1
            case _:
                second = self.draw(random)
                broken = {i: o for i, o in cut.items() if self.segments[i].high <= 0.5}
                broken |= {i: o for i, o in second.items() if self.segments[i].low >= 0.5}
        return broken

    def is_partly_read(self, cut: Cut) -> bool:
        """Return whether a cut is behind a segment for some of its keys, and before it for others.

        It names segments of this stream, which serve every key once.
        """
        order = {segment: place for place, segment in enumerate(sorted(self.segments))}
        for each, segment in self.segments.items():
            over = [i for i in cut if _overlap(self.segments[i], segment)]
            behind = [order[i] > order[each] for i in over]
            if any(behind) and not all(behind):
                return True
        return False


def _overlap(a: Segment, b: Segment) -> bool:
    return a.low < b.high and b.low < a.high


class Server:
    """A server that is asked about cuts, in a scope of its own."""

    def __init__(self, uri: str) -> None:
        self.scope = f"cuts{uuid.uuid4().hex[:8]}"
        self._client = ControllerClient(uri, patience=20.0)
        self._client.create_scope(self.scope)
        self._channel = grpc.insecure_channel(
            self._client.address, options=[("grpc.enable_http_proxy", 0)]
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._channel.close()
        self._client.close()

    def make(self, name: str, *, copy: int = 0) -> World:
        """Make a stream and a group that subscribes to it; return what there is of the stream."""
        first, scales = WORLDS[name]
        stream = f"{name}{copy}"
        scaling = Scaling(ScalingKind.FIXED, first)
        self._client.create_stream(self.scope, stream, StreamSettings(scaling))
        world = World(stream)
        ranges: dict[int, tuple[float, float]] = {}
        self._write(stream)
        for numbers, new in scales:
            current = {r.segment_id: (r.low, r.high) for r in self._current(stream)}
            ranges.update(current)
            sealed = [each for each in current if each & 0xFFFFFFFF in numbers]
            self._client.scale_stream(
                self.scope, stream, sealed=sealed, ranges=new, timeout=SCALE_SECONDS
            )
            made = [r.segment_id for r in self._current(stream) if r.segment_id not in current]
            world.scales.append((sealed, made))
            self._write(stream)
        active = {r.segment_id: (r.low, r.high) for r in self._current(stream)}
        ranges.update(active)
        infos = segment_infos(self._client, self.scope, stream, list(ranges))
        world.segments = {
            each: Segment(*ranges[each], infos[each].write_offset, each not in active)
            for each in sorted(ranges)
        }
        self._make_group(stream, f"s-{stream}", {}, retention_type=1)
        return world

    def _current(self, stream: str) -> Any:
        return self._client.current_segments(self.scope, stream).ranges

    def _write(self, stream: str) -> None:
        with BlockingEventWriter(self._client, self.scope, stream) as writer:
            for number in range(40):
                writer.submit(b"twenty bytes of data", key=f"key {number}")
            writer.flush()

    # ---- Questions -------------------------------------------------------------------------------

    def is_valid(self, stream: str, cut: Cut) -> bool:
        reply = self._ask("isStreamCutValid", self._cut(stream, cut), pb.StreamCutValidityResponse)
        return reply is not None and bool(reply.response)

    def truncate(self, stream: str, cut: Cut) -> bool:
        reply = self._ask("truncateStream", self._cut(stream, cut), pb.UpdateStreamStatus)
        return reply is not None and reply.status == pb.UpdateStreamStatus.SUCCESS

    def release(self, stream: str, cut: Cut) -> bool:
        """Return whether the subscriber's cut is taken."""
        request = pb.SubscriberStreamCut(
            subscriber=f"{self.scope}/s-{stream}",
            generation=0,
            readerGroupId=str(uuid.UUID(int=1)),
            streamCut=self._cut(stream, cut),
        )
        reply = self._ask("updateSubscriberStreamCut", request, pb.UpdateSubscriberStatus)
        return reply is not None and reply.status == pb.UpdateSubscriberStatus.SUCCESS

    def begin_group(self, stream: str, cut: Cut) -> bool:
        """Return whether a new reader group may begin at a cut."""
        return self._make_group(stream, f"g{uuid.uuid4().hex[:8]}", cut)

    def _make_group(self, stream: str, name: str, cut: Cut, *, retention_type: int = 0) -> bool:
        request = pb.ReaderGroupConfiguration(
            scope=self.scope,
            readerGroupName=name,
            groupRefreshTimeMillis=3000,
            automaticCheckpointIntervalMillis=30_000,
            maxOutstandingCheckpointRequest=3,
            retentionType=retention_type,
            readerGroupId=str(uuid.UUID(int=1)),
            startingStreamCuts=[self._cut(stream, cut)],
            endingStreamCuts=[self._cut(stream, {})],
        )
        reply = self._ask("createReaderGroup", request, pb.CreateReaderGroupResponse)
        return reply is not None and reply.status == pb.CreateReaderGroupResponse.SUCCESS

    def _cut(self, stream: str, cut: Cut) -> pb.StreamCut:
        return pb.StreamCut(streamInfo=pb.StreamInfo(scope=self.scope, stream=stream), cut=cut)

    def _ask(self, method: str, request: Message, reply_type: Any) -> Any:
        """Return the reply, or None for an error; a server that stands still ends the test."""
        invoke: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                return invoke(request, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                code = error.code()  # type: ignore[attr-defined]
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise AssertionError(f"no answer to {method} {request}") from error
                if code is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    return None


def explain_difference(world: World, cut: Cut) -> str | None:
    """Return the name of the decided difference that a cut may show, if it may show one."""
    if any(offset < 0 for offset in cut.values()):
        return "-1"
    if not cut.keys() <= world.segments.keys():
        return None
    if any(offset > world.segments[each].length for each, offset in cut.items()):
        return "beyond"
    return "partly read" if cut and world.is_partly_read(cut) else None
