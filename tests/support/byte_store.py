"""A store of one byte stream that breaks connections, and gives bytes in pieces of any length.

Owns: ``ByteStore``, in threads, and the controller of its stream.
"""

from __future__ import annotations

import threading
from random import Random
from types import SimpleNamespace

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import Append
from pravega_wire.sessions.routes import SegmentRange
from segstore_client.access.tokens import PLAIN
from segstore_client.controller.controller_client import CurrentSegments, HeadSegments
from support.threaded_store import ThreadedStore


class ByteStore(ThreadedStore):
    """Serves the segment of the stream ``s/t``; breaks ``breaks`` connections in all.

    ``data`` is what it has; it gives all of it, and then says that the segment is sealed.
    """

    def __init__(self, seed: int, *, breaks: int = 0, data: bytes = b"") -> None:
        super().__init__()
        self.data = data
        self.appends: list[bytes] = []
        self.connections = 0
        self.is_silent = False
        self._random = Random(seed)
        self._breaks = breaks
        self._lock = threading.Lock()
        self.last_event_number = wire.NULL_ATTRIBUTE_VALUE

    @property
    def controller(self) -> SimpleNamespace:
        found: SimpleNamespace = SimpleNamespace(
            current_segments=lambda *_: CurrentSegments((SegmentRange(0, 0.0, 1.0),)),
            head_segments=lambda *_: HeadSegments({0: 0}),
            segment_address=lambda *_: self.address,
            store_access=lambda *_: PLAIN,
            with_patience=lambda _: found,
        )
        return found

    def answer(self, command: wire.Command | Append) -> bytes:
        with self._lock:
            match command:
                case wire.Hello():
                    self.connections += 1
                    return encode(wire.HELLO)
                case wire.SetupAppend(request_id, writer_id, segment, _):
                    return encode(
                        wire.AppendSetup(request_id, segment, writer_id, self.last_event_number)
                    )
                case wire.GetStreamSegmentInfo(request_id, segment, _):
                    length = len(self.data)
                    return encode(
                        wire.StreamSegmentInfo(request_id, segment, True, False, False, 0, length)
                    )
                case wire.KeepAlive() | wire.ReadSegment() if self.is_silent:
                    self.is_silent = not isinstance(command, wire.KeepAlive)
                    return b""
                case wire.KeepAlive():
                    return encode(command)
                case wire.ReadSegment():
                    return self._read(command)
                case Append():
                    return self._append(command)
                case wire.AskDelays(request_id):
                    # On a machine at work a reply may take a second, after which the client asks.
                    return encode(wire.DelaysTold(request_id, ()))
                case _:
                    raise AssertionError(command)

    def _breaks_now(self) -> bool:
        breaks = self._breaks > 0 and self._random.random() < 0.4
        self._breaks -= breaks
        return breaks

    def _read(self, request: wire.ReadSegment) -> bytes:
        end = request.offset + self._random.randint(1, request.suggested_length)
        data = self.data[request.offset : end]
        is_end = end >= len(self.data)
        reply = encode(
            wire.SegmentRead(
                request.segment, request.offset, is_end, is_end, data, request.request_id
            )
        )
        if self._breaks_now():
            raise EOFError
        return reply

    def _append(self, append: Append) -> bytes:
        breaks, stores_first = self._breaks_now(), self._random.random() < 0.5
        if breaks and not stores_first:
            raise EOFError
        previous, self.last_event_number = self.last_event_number, append.last_event_number
        assert previous < self.last_event_number
        self.data += append.data
        self.appends.append(append.data)
        if breaks:
            raise EOFError
        number = self.last_event_number
        return encode(wire.DataAppended(append.writer_id, number, previous, append.request_id, 9))
