"""Transactions of a real stream, by a program that blocks."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from segstore_client import PravegaError, TransactionEndedError, WriterClosedError, blocking
from segstore_client.blocking import transaction
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.positions import Position
from support.served_stream import run, served_stream


def read_events(store: blocking.BlockingStore) -> list[bytes]:
    with store.reader("s/t", end=Position.TAIL) as reader:
        return [event.data for event in reader]


def commit_and_leave(address: str) -> None:
    with blocking.connect(address) as store:
        with store.writer("s/t") as writer:
            with store.transaction("s/t") as first:
                for number in range(100):
                    first.submit(b"t%d" % number, key="k")
                # It is in the stream before the transaction's events are.
                writer.write(b"between", key="k")
            writer.write(b"after", key="k")
        with suppress(ZeroDivisionError), store.transaction("s/t") as second:
            second.write(b"lost", key="k")
            _ = 1 / 0
        with store.transaction("s/t") as third:
            assert third.id.int > 0
        assert read_events(store) == [b"between", *(b"t%d" % n for n in range(100)), b"after"]


async def test_events_of_a_transaction_come_together_or_never(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(commit_and_leave, stream.address)


async def test_the_calls_on_a_transaction_renew_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lease is due at each call, however fast they come.
    monkeypatch.setattr(transaction, "RENEWALS", math.inf)
    renewed: list[tuple[bytes, int, str]] = []
    ping = ControllerClient.ping_transaction

    def note(self: ControllerClient, scope: str, stream: str, identifier: bytes, ms: int) -> str:
        renewed.append((identifier, ms, ping(self, scope, stream, identifier, ms)))
        return renewed[-1][2]

    monkeypatch.setattr(ControllerClient, "ping_transaction", note)

    def write(address: str) -> None:
        with blocking.connect(address) as store:
            with store.transaction("s/t") as mine:
                mine.submit(b"early", key="k")
                assert renewed == [(mine.id.bytes, 30_000, "ok")]
                mine.write(b"late", key="k")
                assert len(renewed) >= 2
            assert read_events(store) == [b"early", b"late"]

    async with served_stream(tmp_path, 0) as stream:
        await run(write, stream.address)


def write_for_ever(mine: blocking.BlockingTransaction) -> None:
    """Write until the transaction's segments are gone, a moment after its end."""
    while True:
        mine.write(b"event", key="k")


async def test_a_transaction_that_others_have_ended_is_told(tmp_path: Path) -> None:
    def write(address: str) -> None:
        with blocking.connect(address) as store, ControllerClient(address) as controller:
            with ExitStack() as left:
                mine = left.enter_context(store.transaction("s/t"))
                mine.write(b"early", key="k")
                assert controller.abort_transaction("s", "t", mine.id.bytes)
                told = f"transaction {mine.id} of s/t has ended"
                with pytest.raises(TransactionEndedError, match=told):
                    write_for_ever(mine)
                with pytest.raises(TransactionEndedError, match=told):
                    left.close()
            assert read_events(store) == []

    async with served_stream(tmp_path, 0) as stream:
        await run(write, stream.address)


async def test_a_transaction_that_ends_before_its_commit_is_told(tmp_path: Path) -> None:
    def write(address: str) -> None:
        with blocking.connect(address) as store, ControllerClient(address) as controller:
            left = ExitStack()
            mine = left.enter_context(store.transaction("s/t"))
            assert controller.abort_transaction("s", "t", mine.id.bytes)
            with pytest.raises(TransactionEndedError):
                left.close()

    async with served_stream(tmp_path, 0) as stream:
        await run(write, stream.address)


async def test_a_program_that_blocks_commits_and_aborts_by_hand(tmp_path: Path) -> None:
    def write(address: str) -> None:
        with blocking.connect(address) as store:
            with store.transaction("s/t") as mine:
                mine.submit(b"seen")
                mine.commit()
                assert read_events(store) == [b"seen"]
                with pytest.raises(WriterClosedError, match=f"transaction {mine.id} was committed"):
                    mine.submit(b"lost")
                mine.abort()
            for end in (lambda each: each.abort(), lambda each: each.close()):
                other = store.transaction("s/t", buffer_bytes=1000)
                other.write_nowait(b"lost").wait()
                end(other)
                with pytest.raises(WriterClosedError, match=f"transaction {other.id} was aborted"):
                    other.commit()
            assert read_events(store) == [b"seen"]

    async with served_stream(tmp_path, 0) as stream:
        await run(write, stream.address)


async def test_a_transaction_on_a_sealed_stream_is_refused_at_once(tmp_path: Path) -> None:
    """That answer of the controller is one that may pass, too."""

    def begin(address: str) -> None:
        with blocking.connect(address, patience=1e6) as store:
            store.seal_stream("s/t")
            with pytest.raises(PravegaError, match="s/t"):
                store.transaction("s/t")

    async with served_stream(tmp_path, 0) as stream:
        await run(begin, stream.address)
