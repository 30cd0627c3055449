"""The segment store's use of tokens, seen from outside: on the wire and at its container.

Owns: the rules below, and what they are checked by, which is no code of the store.

Rules:
1. A request is answered with something else than a refusal only if its token was made by the
   controller, is for its segments and its level, and had not expired by the store's own clock.
2. A request is refused for its expired token only if it has expired, and for good only if it was
   never made for that: official clients give up after such a refusal.
3. An append reaches the container only from a writer that was set up, and whose token of the last
   setup has not expired long ago: ``EXPIRY_SECONDS``, and ``LOOK_SECONDS_MAX`` after a clock was
   set.
4. The store ends a connection only when the token of a writer's last setup on it has expired, or
   the writer itself has done something wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from pravega_wire import commands as wire
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import RemoteProtocolError
from segstore.api import OnAppended
from segstore.model.attributes import AttributeUpdate
from segstore.network.token_checks import CHECK_FAILED, EXPIRED, LOOK_SECONDS_MAX
from segstore.tiers.api import Buffer
from support.models.memory_container import MemoryContainer
from tokens.rights import Minted, allows

EXPIRY_SECONDS = 1.5
"""Maximum time, in seconds, for which a writer goes on after its token has expired: the clock of
tokens has whole seconds."""
CLOSING_SECONDS = 3.0
"""Maximum time, in seconds, from the decision to end a connection to its end."""
_EXCUSES = (wire.InvalidEventNumber, wire.SegmentIsSealed, wire.NoSuchSegment)
"""Replies to appends after which further appends of the writer end the connection."""


class ViolationError(Exception):
    """A rule does not hold."""


class StoreClock:
    """The store's clock, in seconds, and what it has shown."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._times: list[float] = []
        self._readings: list[int] = []
        self.set_at = -1000.0
        """When it was set last, or that was noticed."""

    def __call__(self) -> int:
        """Return what it shows."""
        now = self._now_ms() // 1000
        self._times.append(trio.current_time())
        self._readings.append(now)
        return now

    def shown_since(self, time: float) -> list[int]:
        """Return what it has shown since then, and shows now."""
        self()
        return self._readings[bisect_left(self._times, time) :]


@dataclass(frozen=True)
class _Asked:
    request: Any
    time: float


class Watch:
    """All connections of a store."""

    def __init__(
        self,
        clock: StoreClock,
        minted: dict[str, Minted],
        violated: Callable[[BaseException], None],
        counts: Counter[str],
    ) -> None:
        self.clock = clock
        self.minted = minted
        self.counts = counts
        self.is_over = False
        self.expiries: dict[bytes, int] = {}
        """When the token of each writer's last setup expires."""
        self._violated = violated

    def violated(self, what: str) -> None:
        """End the run."""
        if not self.is_over:
            self._violated(ViolationError(what))

    def check_answer(self, asked: _Asked, reply: wire.Reply) -> None:
        """Compare an answer with what its request's token is for."""
        token, kind = asked.request.delegation_token, type(asked.request).__name__
        minted = self.minted.get(token)
        shown = self.clock.shown_since(asked.time)
        is_for_it = minted is not None and allows(minted, asked.request)
        if not isinstance(reply, wire.AuthTokenCheckFailed):
            if minted is None or not is_for_it:
                self.violated(f"{kind} was done without a token for it: {reply}")
            elif min(shown) >= minted.expires:
                late = min(shown) - minted.expires
                self.violated(f"{kind} was done with a token that had expired {late} s before")
            return
        self.counts[f"{kind} refused, code {reply.error_code}"] += 1
        if reply.error_code == EXPIRED:
            if minted is not None and max(shown) < minted.expires:
                self.violated(f"{kind} was refused for a token that had not expired")
        elif reply.error_code != CHECK_FAILED or is_for_it:
            self.violated(f"{kind} was refused for good with a token that is for it: {reply}")

    def check_append(self, writer_id: bytes) -> None:
        """Check that a writer may append now."""
        expires = self.expiries.get(writer_id)
        if expires is None:
            self.violated(f"writer {writer_id.hex()} appends without having been set up")
            return
        late = self.clock() - expires
        steady = trio.current_time() - self.clock.set_at
        if late > EXPIRY_SECONDS and steady > LOOK_SECONDS_MAX + EXPIRY_SECONDS:
            self.violated(f"writer {writer_id.hex()} appends {late} s after its token has expired")


class WatchedContainer(MemoryContainer):
    """A container in memory that makes nothing durable by itself, and shows appends."""

    def __init__(self, container_id: int, watch: Watch) -> None:
        super().__init__(container_id, auto_commit=False)
        self._watch = watch

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
        on_complete: OnAppended,
    ) -> None:
        """Queue an append, of a writer or of a table."""
        if not name.startswith("_system/"):
            self._watch.check_append(attribute_updates[0].attribute_id)
        super().append_nowait(
            name,
            data,
            attribute_updates=attribute_updates,
            expected_offset=expected_offset,
            on_complete=on_complete,
        )


class WatchedStream(trio.abc.HalfCloseableStream):
    """The store's end of a connection."""

    def __init__(self, inner: trio.abc.HalfCloseableStream, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self._requests: Connection | None = Connection(Role.SERVER)
        self._replies = Connection(Role.CLIENT)
        self._asked: dict[int, _Asked] = {}
        self._expiries: dict[bytes, int] = {}
        self._writers: set[bytes] = set()
        self._is_excused = False
        self._has_ended = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what came, after having looked at it."""
        try:
            data = bytes(await self._inner.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._has_ended = True
            raise
        if not data:
            self._has_ended = True
        self._note_requests(data)
        return data

    def _note_requests(self, data: bytes) -> None:
        if self._requests is None:
            return
        try:
            commands = self._requests.receive_data(data)
        except RemoteProtocolError:
            # The store finds the same, and ends the connection.
            self._requests, self._is_excused = None, True
            return
        for command in commands:
            if isinstance(command, Append):
                self._is_excused |= command.writer_id not in self._writers
            elif hasattr(command, "delegation_token"):
                self._asked[command.request_id] = _Asked(command, trio.current_time())

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send replies, after having looked at them."""
        for reply in self._replies.receive_data(bytes(data)):
            assert isinstance(reply, wire.Reply)
            self._note_reply(reply)
        try:
            await self._inner.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._has_ended = True
            raise

    def _note_reply(self, reply: wire.Reply) -> None:
        if isinstance(reply, _EXCUSES):
            self._is_excused = True
        asked = self._asked.pop(getattr(reply, "request_id", -1), None)
        if asked is None:
            return
        self._watch.check_answer(asked, reply)
        if isinstance(reply, wire.AppendSetup):
            self._writers.add(reply.writer_id)
            minted = self._watch.minted.get(asked.request.delegation_token)
            if minted is not None:
                self._expiries[reply.writer_id] = minted.expires
                self._watch.expiries[reply.writer_id] = minted.expires

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until more can be sent."""
        await self._inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Send the end."""
        self._check_end()
        await self._inner.send_eof()

    async def aclose(self) -> None:
        """Close, after having checked that there is a reason."""
        self._check_end()
        await self._inner.aclose()

    def _check_end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        shown = max(self._watch.clock.shown_since(trio.current_time() - CLOSING_SECONDS))
        if any(shown >= expires for expires in self._expiries.values()):
            self._watch.counts["connection ended by an expired token"] += 1
        elif not self._is_excused:
            self._watch.violated("the store ended a connection though no writer's token expired")
