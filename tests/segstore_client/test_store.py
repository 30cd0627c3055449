"""Scopes and streams of a real store, by the client."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

import segstore_client
from segstore_client import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    NotFoundError,
    Position,
    UnavailableError,
    UsageError,
    blocking,
    control,
)
from segstore_client.backoff import Patience
from segstore_client.control import split_name
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import (
    Retention,
    RetentionKind,
    Scaling,
    ScalingKind,
)
from support.event_loops import RunClient
from support.served_stream import run, serve_stream, served_stream

FAILURES = 8
"""Number of failed attempts in more than two seconds."""


async def use(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("demo")
        await store.create_scope("demo", exist_ok=True)
        with pytest.raises(AlreadyExistsError):
            await store.create_scope("demo")
        assert "demo" in await store.list_scopes()
        retention = Retention(RetentionKind.SIZE, 1_000_000)
        await store.create_stream("demo/orders", segments=3, retention=retention, tags=["fruit"])
        await store.create_stream("demo/orders", exist_ok=True)
        with pytest.raises(AlreadyExistsError, match="stream demo/orders exists already"):
            await store.create_stream("demo/orders")
        scaling = Scaling(ScalingKind.EVENT_RATE, 2, target_rate=100, scale_factor=2)
        await store.create_stream("demo/clicks", scaling=scaling)
        settings = await store.stream_settings("demo/orders")
        assert settings.scaling.segment_count_min == 3
        assert (settings.retention, settings.tags) == (retention, ("fruit",))
        assert (await store.stream_settings("demo/clicks")).scaling == scaling
        assert sorted(await store.list_streams("demo")) == ["demo/clicks", "demo/orders"]
        assert await store.list_streams("demo", tag="fruit") == ["demo/orders"]
        await store.update_stream("demo/clicks", settings)
        assert (await store.stream_settings("demo/clicks")).tags == ("fruit",)
        with pytest.raises(ConflictError, match="must be sealed first"):
            await store.delete_stream("demo/orders")
        async with store.writer("demo/orders") as writer:
            await writer.write(b"12345", key="k")
        head = await store.stream_cut("demo/orders", Position.HEAD)
        assert head == {0: 0, 1: 0, 2: 0}
        tail = await store.stream_cut("demo/orders", Position.TAIL)
        assert sorted(tail.values()) == [0, 0, 13]
        await store.truncate_stream("demo/orders", tail)
        assert await store.stream_cut("demo/orders", Position.HEAD) == tail
        with pytest.raises(UsageError, match="its writers record no times"):
            await store.stream_cut("demo/orders", datetime(2026, 1, 1, tzinfo=UTC))
        await store.scale_stream("demo/orders", 5)
        assert len(await store.stream_cut("demo/orders", Position.TAIL)) == 5
        for stream in ("demo/orders", "demo/clicks"):
            await store.seal_stream(stream)
            with pytest.raises(ConflictError, match="a sealed stream cannot be scaled"):
                await store.scale_stream(stream, 3)
            await store.delete_stream(stream)
        with pytest.raises(NotFoundError):
            await store.stream_settings("demo/orders")
        await store.delete_scope("demo")
        assert "demo" not in await store.list_scopes()


async def test_scopes_and_streams_are_made_changed_and_deleted(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(use, stream.address)


@pytest.mark.parametrize("name", ["", "orders", "/orders", "demo/"])
def test_a_name_without_scope_or_stream_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="write SCOPE/STREAM"):
        split_name(name)


async def test_an_error_of_the_program_leaves_the_block_as_it_is(run_client: RunClient) -> None:
    async def fail() -> None:
        async with segstore_client.connect("tcp://127.0.0.1:1"):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await run_client(fail)


@pytest.mark.parametrize("patience", [None, 0.2])
async def test_a_controller_that_is_not_there_is_told(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch, patience: float | None
) -> None:
    monkeypatch.setattr(control, "FIRST_SECONDS", 0.2 if patience is None else 1e6)

    async def ask() -> None:
        async with segstore_client.connect("tcp://127.0.0.1:1", patience=patience) as store:
            for call in (store.list_scopes, store.reader("s/t").__aenter__):
                with pytest.raises(UnavailableError, match=r"answers at 127\.0\.0\.1:1"):
                    await call()

    await run_client(ask)


class Failures:
    """Counts the attempts that fail, of all clients; ``enough`` is set after some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.enough = trio.Event()
        token, next_delay = trio.lowlevel.current_trio_token(), Patience.next_delay

        def note(patience: Patience) -> float | None:
            self.count += 1
            if self.count == 2 * FAILURES:
                token.run_sync_soon(self.enough.set)
            return next_delay(patience)

        monkeypatch.setattr(Patience, "next_delay", note)


@pytest.mark.proof
async def test_a_call_waits_for_servers_that_are_away_as_long_as_the_program_says(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up after a second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address, failures = f"tcp://127.0.0.1:{port}", Failures(monkeypatch)

    async def use() -> None:
        async with segstore_client.connect(address, patience=1e6) as store:
            await store.create_scope("s")
            await store.create_stream("s/t")
            locate, last = ControllerClient.segment_address, failures.count + FAILURES

            def find_late(self: ControllerClient, *segment: Any) -> tuple[str, int]:
                is_away = failures.count < last
                return ("127.0.0.1", 1) if is_away else locate(self, *segment)

            monkeypatch.setattr(ControllerClient, "segment_address", find_late)
            assert await store.stream_cut("s/t", Position.TAIL) == {0: 0}

    def use_blocking() -> None:
        with blocking.connect(address, patience=1e6) as store:
            store.create_scope("blocking")
            store.create_stream("blocking/t")
            assert store.list_streams("blocking") == ["blocking/t"]

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as clients:
            clients.start_soon(run_client, use)
            clients.start_soon(run, use_blocking)
            await failures.enough.wait()
            await serve_stream(nursery, tmp_path, port=port)
        nursery.cancel_scope.cancel()


async def test_what_was_closed_or_not_entered_says_so(
    tmp_path: Path, run_client: RunClient
) -> None:
    """Readers waited for ever, and states connected again."""

    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await store.create_group("s/g", ["s/t"])
            reader, member = store.reader("s/t"), store.group("s/g").reader("one")
            assert repr(store) == f"<Store at {address.removeprefix('tcp://')}>"
            assert repr(reader) == "<EventReader of s/t>"
            assert repr(member) == "<GroupReader one of s/g>"
            assert repr(store.writer("s/t")) == "<EventWriter of s/t>"
            assert repr(store.transaction("s/t")) == "<Transaction of s/t>"
            assert repr(store.byte_reader("s/t")) == "<ByteReader of s/t>"
            for each in (reader, member):
                with pytest.raises(ClosedError, match="is not entered, or closed"):
                    await each.next_event()
                async with each:
                    assert await each.next_event(timeout=60.0) is not None
                for call in (each.next_event, each.next_batch, each.__anext__):
                    with pytest.raises(ClosedError, match="is not entered, or closed"):
                        await call()
            async with store.synchronizer("s/t", load=bytes, apply=lambda state, _: state) as state:
                pass
            with pytest.raises(ClosedError, match="the state in s/t is closed"):
                await state.read()
        with pytest.raises(ClosedError, match="the connection to the controller"):
            await store.list_scopes()

    async with served_stream(tmp_path, 3) as stream:
        await run_client(use, stream.address)
