"""The steps of clients that share a log in one segment, without I/O: requests out, replies in.

Owns: ``LogSession``: the offset up to which the log was read, and the numbers of appends. States of
reader groups and watermarks are such logs: short, and in one segment that is never sealed. Each
step is a generator of ``Make``, which gets the reply to each.

Compaction: a revision that replaces all before it is appended at offset B; then the attribute
``REVISION_MARK`` becomes B, and the segment is truncated at the mark's value before. So a client
that reads at the earlier mark meanwhile still finds what it needs.

Invariants:
1. When an append whose answer was lost is tried again, it is appended once. When it was given up,
   the next one is not taken for it. Held by ``test_each_append_has_a_number_of_its_own``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pravega_wire import commands as wire
from pravega_wire.codec import HEADER_BYTES
from pravega_wire.errors import ProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK

READ_BYTES = 1024 * 1024
LOG_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number of bytes that are read at once: clients compact their logs at 512 KiB."""
NO_MARK = -(1 << 63)

T = TypeVar("T")
R = TypeVar("R", bound=wire.Reply)
Make: TypeAlias = Callable[[int, str], wire.Request]
"""Makes a request of its id and a token."""
Steps: TypeAlias = Generator[Make, wire.Reply, T]
Attempt: TypeAlias = Callable[[], Steps[Any]]
"""An attempt at something, which may be repeated over other connections until it returns."""


class LogMovedError(ProtocolError):
    """The log begins elsewhere now: read it again."""


class LogTooLongError(Exception):
    """The log is longer than clients read: no client compacts it."""


class LogSession:
    """The log in a segment. ``refusal`` returns the error for a reply that is no answer."""

    def __init__(self, segment: str, refusal: Callable[[wire.Reply], Exception]) -> None:
        self.offset: int | None = None
        """The end of what was read; None before."""
        self.mark = NO_MARK
        self.is_set_up = False
        """True when the store knows the writer on this connection."""
        self.segment = segment
        """The name of the segment."""
        self._refusal = refusal
        self._writer_id = os.urandom(16)
        self._number = 0

    @property
    def bytes_since_mark(self) -> int:
        """Return the number of bytes behind the last compaction that this client knows."""
        return (self.offset or 0) - max(self.mark, 0)

    def read(self, *, whole: bool = False) -> Steps[tuple[bool, list[bytes]]]:
        """Return whether the log was read from its beginning, and the revisions that are new.

        It begins at the last compaction; with ``whole`` at what is left before it, too.
        """
        info = yield from self._call(
            lambda i, token: wire.GetStreamSegmentInfo(i, self.segment, token),
            wire.StreamSegmentInfo,
        )
        begin, end = self.offset, info.write_offset
        is_anew = begin is None or not info.start_offset <= begin <= end
        if begin is None or is_anew:
            begin = info.start_offset
            if not whole:
                yield from self.read_mark()
                begin = max(begin, self.mark)
        if begin > end:
            raise LogMovedError(f"{self.segment} was compacted meanwhile")
        if end - begin > LOG_BYTES_MAX:
            raise LogTooLongError(f"{self.segment} has {end - begin} bytes: it is not compacted")
        data = bytearray()
        while begin + len(data) < end:
            data += yield from self._read_piece(begin + len(data), end)
        self.offset, found = end, bytes(data)
        return is_anew, [found[start:stop] for start, stop in iterate_event_spans(found)]

    def read_mark(self) -> Steps[None]:
        """Ask where the last compaction begins."""
        reply = yield from self._call(
            lambda i, token: wire.GetSegmentAttribute(i, self.segment, REVISION_MARK, token),
            wire.SegmentAttribute,
        )
        self.mark = reply.value

    def append(self, revision: bytes) -> Callable[[], Steps[bool]]:
        """Return the attempt to append a revision if none was since the log was read, which may be
        repeated until it says whether it was appended."""
        assert self.offset is not None, "read it first"
        self._number += 1
        return partial(self._append, revision, self._number, self.offset)

    def move_mark(self, begin: int) -> Steps[None]:
        """Note that a compaction begins at an offset, and delete what was before the last one."""
        yield from self.read_mark()
        old = self.mark
        if old < begin:
            yield from self._call(
                lambda i, token: wire.UpdateSegmentAttribute(
                    i, self.segment, REVISION_MARK, begin, old, token
                ),
                wire.SegmentAttributeUpdated,
            )
            self.mark = begin
        if old > 0:
            reply = yield lambda i, token: wire.TruncateSegment(i, self.segment, old, token)
            if not isinstance(reply, wire.SegmentTruncated | wire.SegmentIsTruncated):
                raise self._refusal(reply)

    def compact(self, revision: bytes) -> Generator[Attempt, Any, bool]:
        """Append a revision that replaces all before it, and delete what is not needed any more.

        Yield the attempts, and return whether it was appended, as ``append`` does.
        """
        begin = self.offset
        if not (yield self.append(revision)):
            return False
        assert begin is not None
        yield partial(self.move_mark, begin)
        return True

    def _append(self, revision: bytes, number: int, offset: int) -> Steps[bool]:
        if not self.is_set_up:
            reply = yield from self._call(
                lambda i, token: wire.SetupAppend(i, self._writer_id, self.segment, token),
                wire.AppendSetup,
            )
            self.is_set_up = True
            if reply.last_event_number >= number:
                self.offset = offset + HEADER_BYTES + len(revision)
                return True
        answer = yield lambda i, _: wire.ConditionalAppend(
            self._writer_id, number, offset, revision, i
        )
        if isinstance(answer, wire.ConditionalCheckFailed):
            return False
        if not isinstance(answer, wire.DataAppended):
            raise self._refusal(answer)
        self.offset = offset + HEADER_BYTES + len(revision)
        return True

    def _read_piece(self, offset: int, end: int) -> Steps[bytes]:
        length = min(READ_BYTES, end - offset)
        reply = yield from self._call(
            lambda i, token: wire.ReadSegment(self.segment, offset, length, token, i),
            wire.SegmentRead,
        )
        # A store may answer with more than it is asked for.
        return bytes(reply.data)[: end - offset]

    def _call(self, make: Make, kind: type[R]) -> Steps[R]:
        """Return the reply to a request, which is of this kind."""
        reply = yield make
        if not isinstance(reply, kind):
            raise self._refusal(reply)
        return reply
