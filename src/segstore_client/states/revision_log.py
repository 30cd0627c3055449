"""A log of revisions in one segment, which clients append under a condition, without blocking.

Owns: one connection, the offset up to which the log was read, and the numbers of appends. The state
of a reader group is such a log: one segment that is never sealed, compacted by those who write it.

Compaction: a revision that replaces all before it is appended at offset B; then the attribute
``REVISION_MARK`` becomes B, and the segment is truncated at the mark's value before. So a client
that reads at the earlier mark meanwhile still finds what it needs.

Invariants:
1. When another client has appended since the log was read, ``append`` appends nothing. Held by
   ``test_a_revision_is_appended_only_behind_what_was_read``.
2. When the connection breaks during an append, it is appended once, and its outcome is known. Held
   by ``test_an_append_whose_answer_is_lost_is_appended_once``.
3. When the log is compacted and truncated while it is read, it is read from its new beginning. Held
   by ``test_a_log_that_is_truncated_is_read_anew``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

import anyio

from pravega_blocking.backoff import Patience
from pravega_blocking.controller_client import RETRIED_ERRORS, ControllerClient, Purpose
from pravega_blocking.errors import NotFoundError, PravegaError, RefusedError
from pravega_wire import commands as wire
from pravega_wire.codec import HEADER_BYTES
from pravega_wire.errors import ProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.names import scoped_name, segment_name
from segstore_client.calls import call_blocking, wait_to_repeat
from segstore_client.connection import StoreConnection, open_connection

READ_BYTES = 1024 * 1024
LOG_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number of bytes that are read at once: clients compact their logs at 512 KiB."""
NO_MARK = -(1 << 63)
T = TypeVar("T")


class _MovedError(ProtocolError):
    """The log begins elsewhere now, or a token was not valid any more."""


class RevisionLog:
    """The log in segment 0 of a stream. One task uses it, and closes it with ``aclose``.

    Raises ``NotFoundError`` if there is no such segment, and ``UnavailableError`` when servers are
    unreachable for longer than ``patience`` seconds.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, patience: float
    ) -> None:
        self.offset: int | None = None
        """The end of what was read; None before."""
        self._controller = controller
        self._scope, self._stream = scope, stream
        self._name = scoped_name(scope, stream)
        self._segment = segment_name(scope, stream, 0)
        self._access = controller.store_access(scope, stream, Purpose.READ_WRITE)
        self._patience = patience
        self._writer_id = os.urandom(16)
        self._number = 0
        self._mark = NO_MARK
        self._connection: StoreConnection | None = None
        self._is_set_up = False
        self._stack = AsyncExitStack()

    async def aclose(self) -> None:
        """Close the connection."""
        self._connection, self._is_set_up = None, False
        stack, self._stack = self._stack, AsyncExitStack()
        with anyio.CancelScope(shield=True):
            await stack.aclose()

    @property
    def bytes_since_mark(self) -> int:
        """Return the number of bytes behind the last compaction that this client knows."""
        return (self.offset or 0) - max(self._mark, 0)

    async def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the log was read from its beginning, and the revisions that are new."""
        return await self._repeat(self._read)

    async def append(self, revision: bytes) -> bool:
        """Append a revision if none was since the log was read; return whether it was appended."""
        assert self.offset is not None, "read it first"
        self._number += 1
        is_appended = await self._repeat(partial(self._append, revision, self.offset))
        if is_appended:
            self.offset += HEADER_BYTES + len(revision)
        return is_appended

    async def compact(self, revision: bytes) -> bool:
        """Append a revision that replaces all before it, and delete what is not needed any more.

        Return whether it was appended, as ``append``.
        """
        begin = self.offset
        assert begin is not None, "read it first"
        if not await self.append(revision):
            return False
        await self._repeat(partial(self._move_mark, begin))
        return True

    async def update_mark(self) -> None:
        """Ask where the last compaction begins."""
        self._mark = await self._repeat(self._read_mark)

    # ---- Reading ---------------------------------------------------------------------------------

    async def _read(self) -> tuple[bool, list[bytes]]:
        info = await self._call(
            lambda i, token: wire.GetStreamSegmentInfo(i, self._segment, token),
            wire.StreamSegmentInfo,
        )
        begin, end = self.offset, info.write_offset
        is_anew = begin is None or not info.start_offset <= begin <= end
        if is_anew:
            self._mark = await self._read_mark()
            begin = max(info.start_offset, self._mark)
        assert begin is not None
        if begin > end:
            raise _MovedError(f"{self._name} was compacted meanwhile")
        if end - begin > LOG_BYTES_MAX:
            raise PravegaError(f"{self._name} has {end - begin} bytes: it is not compacted")
        data = bytearray()
        while begin + len(data) < end:
            data += await self._read_piece(begin + len(data), end)
        whole = bytes(data)
        self.offset = end
        return is_anew, [whole[start:stop] for start, stop in iterate_event_spans(whole)]

    async def _read_piece(self, offset: int, end: int) -> bytes:
        length = min(READ_BYTES, end - offset)
        reply = await self._call(
            lambda i, token: wire.ReadSegment(self._segment, offset, length, token, i),
            wire.SegmentRead,
        )
        # A store may answer with more than it is asked for.
        return bytes(reply.data)[: end - offset]

    async def _read_mark(self) -> int:
        reply = await self._call(
            lambda i, token: wire.GetSegmentAttribute(i, self._segment, REVISION_MARK, token),
            wire.SegmentAttribute,
        )
        return reply.value

    # ---- Writing ---------------------------------------------------------------------------------

    async def _append(self, revision: bytes, offset: int) -> bool:
        number = self._number
        if not self._is_set_up:
            reply = await self._call(
                lambda i, token: wire.SetupAppend(i, self._writer_id, self._segment, token),
                wire.AppendSetup,
            )
            self._is_set_up = True
            if reply.last_event_number >= number:
                return True
        answer = await self._ask(
            lambda i, token: wire.ConditionalAppend(self._writer_id, number, offset, revision, i)
        )
        if isinstance(answer, wire.ConditionalCheckFailed):
            return False
        if not isinstance(answer, wire.DataAppended):
            raise self._refusal(answer)
        return True

    async def _move_mark(self, begin: int) -> None:
        old = await self._read_mark()
        if old < begin:
            await self._call(
                lambda i, token: wire.UpdateSegmentAttribute(
                    i, self._segment, REVISION_MARK, begin, old, token
                ),
                wire.SegmentAttributeUpdated,
            )
            self._mark = begin
        if old > 0:
            reply = await self._ask(
                lambda i, token: wire.TruncateSegment(i, self._segment, old, token)
            )
            if not isinstance(reply, wire.SegmentTruncated | wire.SegmentIsTruncated):
                raise self._refusal(reply)

    # ---- Requests --------------------------------------------------------------------------------

    async def _repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an attempt that is repeated, over new connections."""
        patience = Patience(self._patience)
        while True:
            try:
                return await attempt()
            except RETRIED_ERRORS as error:
                await self.aclose()
                await wait_to_repeat(patience, error, f"{self._name} could not be reached")
            except BaseException:
                # A cancelled request leaves its reply behind.
                await self.aclose()
                raise

    async def _call(self, make: Callable[[int, str], wire.Request], kind: type[T]) -> T:
        """Return the reply to a request, which is of this kind."""
        reply = await self._ask(make)
        if not isinstance(reply, kind):
            raise self._refusal(reply)
        return reply

    async def _ask(self, make: Callable[[int, str], wire.Request]) -> wire.Reply:
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        if self._connection is None:
            locate = partial(self._controller.segment_address, self._scope, self._stream, 0)
            address = await call_blocking(locate)
            opened = open_connection(*address, self._access)
            self._connection = await self._stack.enter_async_context(opened)
        return await self._connection.call(make(self._connection.next_request_id(), token))

    def _refusal(self, reply: wire.Reply) -> Exception:
        if isinstance(reply, wire.NoSuchSegment):
            return NotFoundError(f"there is no segment {self._segment}")
        if isinstance(reply, wire.AuthTokenCheckFailed):
            return self._access.refusal(reply, f"no permission for {self._name}")
        if isinstance(reply, wire.SegmentIsTruncated):
            return _MovedError(f"{self._name} was truncated meanwhile")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(f"the segment store refused a request: {reply.message}")
        return ProtocolError(f"unexpected {type(reply).__name__}")
