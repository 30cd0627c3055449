"""Transactions of a real stream: committed, left by an error, renewed, and ended by others."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

import segstore_client
from pravega_controller.rules import transactions as rules
from segstore_client import TransactionEndedError, WriterClosedError, transaction
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.positions import Position
from support.event_loops import RunClient
from support.served_stream import ServedStream, run, served_stream

LEASE_SECONDS = 0.6


def read_events(stream: ServedStream) -> list[bytes]:
    found = []
    with BlockingEventReader(stream.client, "s", "t", end=Position.TAIL) as reader:
        while (event := reader.next_event()) is not None:
            found.append(event.data)
    return found


async def write_for_ever(mine: segstore_client.Transaction) -> None:
    while True:
        await mine.write(b"event", key="k")


async def test_events_of_a_transaction_come_together_or_never(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            async with store.writer("s/t") as writer:
                async with store.transaction("s/t") as first:
                    for number in range(100):
                        await first.submit(b"t%d" % number, key="k")
                    # It is in the stream before the transaction's events are.
                    await writer.write(b"between", key="k")
                await writer.write(b"after", key="k")
            with suppress(ZeroDivisionError):
                async with store.transaction("s/t") as second:
                    await second.write(b"lost", key="k")
                    _ = 1 / 0
            async with store.transaction("s/t") as third:
                assert third.id.int > 0

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        events = await run(read_events, stream)
    assert events == [b"between", *(b"t%d" % number for number in range(100)), b"after"]


async def test_a_lease_is_renewed_while_the_program_works(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lease of 30 s is renewed each 10 ms, so a busy machine renews it in time, too.
    monkeypatch.setattr(transaction, "RENEWALS", 3000)
    renewed: list[tuple[bytes, int, str]] = []
    enough: list[anyio.Event] = []
    ping = ControllerClient.ping_transaction

    def note(self: ControllerClient, scope: str, stream: str, identifier: bytes, ms: int) -> str:
        renewed.append((identifier, ms, ping(self, scope, stream, identifier, ms)))
        if len(renewed) == 3:
            anyio.from_thread.run_sync(enough[0].set)
        return renewed[-1][2]

    monkeypatch.setattr(ControllerClient, "ping_transaction", note)

    async def write(address: str) -> None:
        enough.append(anyio.Event())
        async with (
            segstore_client.connect(address) as store,
            store.transaction("s/t") as mine,
        ):
            await mine.write(b"early")
            with anyio.fail_after(60):
                await enough[0].wait()
            assert set(renewed) == {(mine.id.bytes, 30_000, "ok")}
            await mine.write(b"late")

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        assert sorted(await run(read_events, stream)) == [b"early", b"late"]


async def test_a_transaction_that_others_have_ended_is_told(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "LEASE_MS_MIN", 1)
    # The lease is not renewed in time.
    monkeypatch.setattr(transaction, "RENEWALS", 0.01)

    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            left = AsyncExitStack()
            mine = await left.enter_async_context(store.transaction("s/t", lease=LEASE_SECONDS))
            with pytest.raises(TransactionEndedError, match=f"transaction {mine.id} of s/t has"):
                await write_for_ever(mine)
            with pytest.raises(TransactionEndedError):
                await left.aclose()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        assert await run(read_events, stream) == []


async def test_a_program_commits_and_aborts_by_hand(tmp_path: Path, run_client: RunClient) -> None:
    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            async with store.transaction("s/t") as mine:
                await mine.submit(b"seen")
                await mine.commit()
                with pytest.raises(WriterClosedError, match=f"transaction {mine.id} was committed"):
                    await mine.submit(b"lost")
                await mine.abort()
            async with store.transaction("s/t") as other:
                await other.write(b"lost")
                await other.abort()
                with pytest.raises(WriterClosedError, match=f"transaction {other.id} was aborted"):
                    await other.commit()
            with pytest.raises(WriterClosedError, match="is not entered"):
                await store.transaction("s/t").commit()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        assert await run(read_events, stream) == [b"seen"]
