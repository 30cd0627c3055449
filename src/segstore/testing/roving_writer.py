"""A writer that finds its segment on whichever store of a cluster has it, for tests.

Owns: ``RovingWriter``. It asks the stores in turn, as there need be no controller in a test, and
continues where the store says that it has stopped, as official writers do.

Record ``n`` is its number in eight bytes: so it lies at ``8 * n``, and any record that is lost,
stored twice or out of order shows when the segment is read. Every acknowledged record must be there
later: a store that returns fewer has lost records, or answers although it has lost the container.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from pravega_wire import commands as wire
from segstore.runtime.transport import OpenStream
from segstore.testing.wire_client import PeerClosedError, WireClient

RECORD_BYTES = 8
BATCH = 20
ANSWER_SECONDS_MAX = 3.0
"""Maximum time, in seconds, that a store may answer nothing before the writer leaves it."""
TURN_SECONDS = 0.02
_PASSING = (OSError, PeerClosedError, trio.BrokenResourceError, trio.TooSlowError)

Address = tuple[str, int]


class LostRecordsError(AssertionError):
    """A store does not know what was acknowledged."""


class RovingWriter:
    """See the module. ``run`` writes until it is cancelled."""

    def __init__(
        self,
        segment: str,
        addresses: Sequence[Address],
        *,
        writer_id: bytes = b"roving writer...",
        open_stream: OpenStream = trio.open_tcp_stream,
        batch: int = BATCH,
        batch_seconds: float = 0.0,
    ) -> None:
        self.segment = segment
        self.acknowledged = 0
        """Number of records that are durable."""
        self.longest_gap = 0.0
        """The longest time, in seconds, between two acknowledgements."""
        self.at: Address | None = None
        """Address of the store that acknowledged the last record."""
        self._addresses = addresses
        self._writer_id = writer_id
        self._open_stream = open_stream
        self._batch = batch
        self._batch_seconds = batch_seconds
        self._acknowledged_at: float | None = None

    async def create(self) -> None:
        """Create the segment, when a store has its container."""
        await self._ask(
            wire.CreateSegment(1, self.segment, 0, 0, ""),
            wire.SegmentCreated | wire.SegmentAlreadyExists,
        )

    async def delete(self) -> None:
        """Delete the segment, when a store has its container."""
        await self._ask(
            wire.DeleteSegment(1, self.segment, ""), wire.SegmentDeleted | wire.NoSuchSegment
        )

    async def run(self) -> None:
        """Write records, where the segment is."""
        while True:
            for address in self._addresses:
                with suppress(*_PASSING):
                    await self._write_at(address)
            await trio.sleep(TURN_SECONDS)

    async def wait_acknowledged(self, more: int) -> None:
        """Wait until ``more`` further records are durable."""
        wanted = self.acknowledged + more
        while self.acknowledged < wanted:  # noqa: ASYNC110
            await trio.sleep(TURN_SECONDS)

    async def check(self) -> int:
        """Read the segment, and see that each record is there once and in order; return how many
        records it has: those that were acknowledged, and perhaps some whose answer got lost."""
        found = b""
        info = await self._ask(
            wire.GetStreamSegmentInfo(1, self.segment, ""), wire.StreamSegmentInfo
        )
        assert isinstance(info, wire.StreamSegmentInfo)
        while len(found) < info.write_offset:
            reply = await self._ask(
                wire.ReadSegment(self.segment, len(found), 1 << 20, "", 1), wire.SegmentRead
            )
            assert isinstance(reply, wire.SegmentRead)
            assert reply.offset == len(found)
            found += reply.data
        count = len(found) // RECORD_BYTES
        if found != b"".join(map(_record, range(count))):
            raise LostRecordsError(f"{self.segment} has other bytes than its {count} records")
        if count < self.acknowledged:
            raise LostRecordsError(f"{self.segment}: {count} of {self.acknowledged} records")
        return count

    async def _ask(self, request: wire.Request, kind: object) -> wire.Command:
        while True:
            for address in self._addresses:
                with suppress(*_PASSING):
                    reply = await self._ask_at(address, request)
                    if isinstance(reply, kind):  # type: ignore[arg-type]
                        return reply
                    assert isinstance(reply, wire.WrongHost), reply
            await trio.sleep(TURN_SECONDS)

    async def _ask_at(self, address: Address, request: wire.Request) -> wire.Command:
        with trio.fail_after(ANSWER_SECONDS_MAX):
            async with await self._open_stream(*address) as stream:
                return await WireClient(stream).call(request)

    async def _write_at(self, address: Address) -> None:
        with trio.fail_after(ANSWER_SECONDS_MAX):
            stream = await self._open_stream(*address)
        async with stream:
            client = WireClient(stream)
            with trio.fail_after(ANSWER_SECONDS_MAX):
                set_up = await client.call(wire.SetupAppend(1, self._writer_id, self.segment, ""))
            if isinstance(set_up, wire.WrongHost):
                return
            if isinstance(set_up, wire.NoSuchSegment):
                raise LostRecordsError(f"{address} does not know {self.segment}")
            assert isinstance(set_up, wire.AppendSetup), set_up
            following = max(0, set_up.last_event_number + 1)
            if following < self.acknowledged:
                raise LostRecordsError(f"{address} knows {following} of {self.acknowledged}")
            while True:
                for number in range(following, following + self._batch):
                    await client.append(
                        self._writer_id, _record(number), number=number, request_id=number
                    )
                following += self._batch
                while self.acknowledged < following:
                    with trio.fail_after(ANSWER_SECONDS_MAX):
                        reply = await client.receive()
                    # Appends of an earlier connection may come after this one was set up: then this
                    # one begins again, as official clients do.
                    if isinstance(reply, wire.WrongHost | wire.InvalidEventNumber):
                        return
                    assert isinstance(reply, wire.DataAppended), reply
                    self._record_acknowledged(reply.event_number + 1, address)
                if self._batch_seconds:
                    await trio.sleep(self._batch_seconds)

    def _record_acknowledged(self, acknowledged: int, address: Address) -> None:
        now = trio.current_time()
        if self._acknowledged_at is not None:
            self.longest_gap = max(self.longest_gap, now - self._acknowledged_at)
        self._acknowledged_at = now
        self.acknowledged, self.at = acknowledged, address


def _record(number: int) -> bytes:
    return number.to_bytes(RECORD_BYTES, "big")
