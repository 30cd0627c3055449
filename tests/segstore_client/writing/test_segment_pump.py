"""One segment's events, to stores that break connections, and that wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup

from pravega_wire.blocking import ConnectionLostError
from pravega_wire.commands import Command, ErrorMessage, NoSuchSegment
from pravega_wire.connection import Append
from pravega_wire.sessions import append_session, long_appends
from pravega_wire.sessions.append_session import AppendSession
from segstore_client import backoff
from segstore_client.access.tokens import PLAIN
from segstore_client.addresses import Address
from segstore_client.errors import RefusedError, StoreDelayedError, UnavailableError
from segstore_client.writing import segment_pump
from segstore_client.writing.acknowledgement import Acknowledgement
from segstore_client.writing.segment_pump import SegmentPump
from support.breaking_store import BreakingStore
from support.counting_store import NAME, CountingStore
from support.event_loops import ON_THE_USUAL_LOOP, RunClient
from support.full_store import FULL, FullStore

pytestmark = ON_THE_USUAL_LOOP


class DeafStore(FullStore):
    """Reads nothing behind the second append; on other connections it reads all."""

    def __init__(self) -> None:
        super().__init__(None)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.has_room.set()
        self.is_deaf, self.may_end = threading.Event(), threading.Event()
        self._append_count = 0

    def answer(self, command: Command | Append) -> bytes:
        self._append_count += isinstance(command, Append)
        if self._append_count == 2 and not self.is_deaf.is_set():
            self.is_deaf.set()
            self.may_end.wait(60)
        return super().answer(command)


class Owner:
    """Notes what the pump tells, and starts it in ``group``."""

    def __init__(self) -> None:
        self.group: TaskGroup | None = None
        self.stored_bytes = 0
        self.stored: anyio.Event | None = None
        self.ready_count = 0
        self.replaced = False
        self.error: Exception | None = None

    def start(self, pump: SegmentPump) -> None:
        if self.group is not None:
            self.group.start_soon(pump.run)

    def take_ready(self) -> None:
        self.ready_count += 1

    def take_acknowledged(self, byte_count: int) -> None:
        self.stored_bytes += byte_count
        if self.stored is not None:
            self.stored.set()

    async def replace(self, pump: SegmentPump) -> None:
        self.replaced = True

    def fail(self, error: Exception) -> None:
        self.error = error


def new_pump(
    owner: Owner,
    address: Address,
    *,
    patience: float = 60.0,
    on_delay: Callable[[str], None] | None = None,
    name: str = "s/a/0",
    takes_long: bool = False,
) -> SegmentPump:
    return SegmentPump(
        0,
        name,
        lambda: address,
        owner,
        access=PLAIN,
        patience=patience,
        on_delay=on_delay,
        session=AppendSession(bytes(range(16)), takes_long=takes_long),
    )


@asynccontextmanager
async def running(pump: SegmentPump) -> AsyncIterator[None]:
    """Run the pump while the block adds events and waits for them."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            owner = pump.owner
            assert isinstance(owner, Owner)
            owner.group = group
            yield
            owner.group = None
            group.cancel_scope.cancel()


def add(pump: SegmentPump, event: bytes) -> Acknowledgement:
    return pump.add(0.0, event)


async def store_all(pump: SegmentPump, events: Sequence[bytes], waits: Container[int]) -> None:
    """Run the pump until it has stored the events; wait for those of some numbers beforehand."""
    async with running(pump):
        for number, event in enumerate(events):
            last = add(pump, event)
            if number in waits:
                await last
        await last
        assert pump.session.is_idle


@pytest.mark.parametrize("seed", range(4))
async def test_each_event_is_stored_once_in_order_however_connections_break(
    seed: int, run_client: RunClient
) -> None:
    events = [b"event %d" % number for number in range(400)]
    owner = Owner()

    async def write(address: Address) -> None:
        await store_all(new_pump(owner, address), events, range(seed, len(events), 40))

    with BreakingStore(seed, breaks=6).running() as store:
        await run_client(write, store.address)
    assert store.stored == events
    assert store.connections > 1
    assert owner.stored_bytes == sum(len(event) + 8 for event in events)
    assert owner.error is None


def group_alike(acknowledgements: Iterable[Acknowledgement]) -> list[int]:
    """Return how many that follow each other are the same one."""
    return [len(list(same)) for _, same in groupby(acknowledgements, id)]


async def test_events_that_may_be_in_different_blocks_share_no_acknowledgement(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "BATCH_EVENTS_MAX", 4)
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 100)
    monkeypatch.setattr(append_session, "BATCH_BYTES", 200)
    monkeypatch.setattr(long_appends, "PIECE_BYTES", 64)
    owner = Owner()

    async def write(address: Address) -> None:
        pump = new_pump(owner, address, name=NAME, takes_long=True)
        lengths = [1, 1, 1, 1, 1, 1, 300, 1, 1]
        async with running(pump):
            found = [add(pump, bytes(length)) for length in lengths]
            assert group_alike(found) == [4, 1, 1, 1, 1, 1]
            await found[3]
            # The others may be stored, too, but not before the block of these was.
            assert [each.is_done for each in found[:4]] == [True] * 4
            await found[-1]
            assert all(each.is_done for each in found)
            later = [add(pump, b"x") for _ in range(3)]
            assert group_alike([found[-1], *later]) == [1, 3]
            assert not later[0].is_done
            await later[0]
        assert pump.session.is_idle

    with CountingStore(0, breaks=0).running() as store:
        await run_client(write, store.address)
    assert owner.ready_count == 6
    assert len(store.events) == 12


async def test_events_that_were_moved_are_told_when_all_that_share_with_them_are_stored(
    run_client: RunClient,
) -> None:
    """They are shared out among the segments that follow theirs, and may come together again."""

    async def write(address: Address) -> None:
        owner = Owner()
        ended, *pumps = (new_pump(owner, address, name=f"s/a/{each}") for each in range(3))
        shared = [add(ended, b"%d" % each) for each in range(4)]
        assert group_alike(shared) == [4]
        moved = ended.session.release()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                owner.group = group
                pumps[0].move(moved[0])
                own = add(pumps[0], b"new")
                assert own is shared[0]
                pumps[0].move(moved[1])
                owner.stored = anyio.Event()
                await owner.stored.wait()
                assert pumps[0].session.is_idle
                assert not own.is_done
                later = add(pumps[0], b"later")
                assert later is not own
                await later
                for event in moved[2:]:
                    pumps[1].move(event)
                assert not own.is_done
                await own
                assert pumps[1].session.is_idle
                owner.group = None
                group.cancel_scope.cancel()

    with FullStore().running() as store:
        store.has_room.set()
        await run_client(write, store.address)


async def test_an_idle_pump_may_get_an_event_at_any_moment(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes its connection as soon as it has nothing to send."""
    monkeypatch.setattr(segment_pump, "IDLE_SECONDS", 0.0)
    events = [b"event %d" % number for number in range(40)]

    async def write(store: BreakingStore) -> None:
        pump = new_pump(Owner(), store.address)
        async with running(pump):
            for number, event in enumerate(events):
                await add(pump, event)
                for _ in range(number % 4):
                    await anyio.lowlevel.checkpoint()
                if number % 4 == 0:
                    await anyio.to_thread.run_sync(store.wait_for_end)

    with BreakingStore(0, 0).running() as store:
        await run_client(write, store)
    assert store.stored == events
    assert store.connections >= 10


async def test_the_patience_of_an_idle_pump_is_whole(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time since an earlier break counted, so that the next one ended the writer at once."""
    passed, attempts = 0.0, 0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(backoff, "time", clock)
    monkeypatch.setattr(segment_pump, "IDLE_SECONDS", 0.1)

    def locate_none() -> Address:
        nonlocal attempts
        attempts += 1
        raise ConnectionLostError("it is away")

    async def write(store: BreakingStore) -> None:
        nonlocal passed
        pump = new_pump(owner, store.address, patience=1.0)
        async with running(pump):
            await add(pump, b"one")
            await anyio.to_thread.run_sync(store.wait_for_end)
        passed, pump._locate = 1000.0, locate_none
        add(pump, b"another")
        await pump.run()

    owner = Owner()
    # With this seed it stores the event, and breaks the connection.
    with BreakingStore(4, 1).running() as store:
        await run_client(write, store)
    assert store.stored == [b"one"]
    assert isinstance(owner.error, UnavailableError)
    assert attempts > 3


async def test_an_idle_pump_closes_its_connection(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_pump, "IDLE_SECONDS", 0.1)

    async def write(store: BreakingStore) -> None:
        pump = new_pump(Owner(), store.address)
        async with running(pump):
            for event in (b"one", b"two"):
                await add(pump, event)
                await anyio.to_thread.run_sync(store.wait_for_end)

    with BreakingStore(0, 0).running() as store:
        await run_client(write, store)
    assert store.stored == [b"one", b"two"]
    assert store.connections == 2


@pytest.mark.parametrize("seed", range(6))
async def test_long_events_are_stored_once_in_order_however_connections_break(
    seed: int, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 100)
    monkeypatch.setattr(long_appends, "PIECE_BYTES", 64)
    events = [b"event %d" % number + bytes(200 * (number % 3 == 0)) for number in range(40)]
    owner = Owner()

    async def write(address: Address) -> None:
        pump = new_pump(owner, address, name=NAME, takes_long=True)
        await store_all(pump, events, range(seed, len(events), 10))

    with CountingStore(seed, breaks=8).running() as store:
        await run_client(write, store.address)
    assert store.events == events
    assert store.merges == 14
    assert owner.stored_bytes == sum(len(event) + 8 for event in events)
    assert owner.error is None


async def test_a_store_that_waits_says_why(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_pump, "LOOK_SECONDS", 0.02)
    told: list[str] = []
    owner = Owner()

    async def write(store: FullStore, patience: float) -> None:
        def note(sentence: str) -> None:
            told.append(sentence)
            if patience > 1 and len(told) == 3:
                store.has_room.set()

        pump = new_pump(owner, store.address, patience=patience, on_delay=note)
        if patience < 1:
            add(pump, b"event")
            with anyio.fail_after(60):
                await pump.run()
        else:
            await store_all(pump, [b"event"], ())

    with FullStore().running() as store:
        await run_client(write, store, 60.0)
    assert set(told) == {FULL}
    assert len(told) >= 3
    assert owner.error is None
    with FullStore().running() as store:
        await run_client(write, store, 0.2)
    assert isinstance(owner.error, StoreDelayedError)
    assert str(owner.error).endswith(f"written to for 0.2 s: {FULL}")


async def test_a_store_that_reads_no_more_is_left(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_pump, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(segment_pump, "REPLY_SECONDS", 3.0)

    async def write(store: DeafStore) -> None:
        pump = new_pump(Owner(), store.address)
        async with running(pump):
            await add(pump, b"heard")
            unheard = add(pump, b"not answered")
            await anyio.to_thread.run_sync(store.is_deaf.wait)
            await add(pump, bytes(8 * 1024 * 1024))
            await unheard

    with DeafStore().running() as store:
        await run_client(write, store)
        store.may_end.set()


async def test_an_idle_connection_says_soon_why_it_waits(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_pump, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(segment_pump, "IDLE_SECONDS", 3600.0)
    told: list[str] = []

    async def write(store: FullStore) -> None:
        def note(sentence: str) -> None:
            told.append(sentence)
            store.has_room.set()

        pump = new_pump(Owner(), store.address, on_delay=note)
        async with running(pump):
            for number in range(2):
                await add(pump, b"event %d" % number)
                store.has_room.clear()
                await anyio.wait_all_tasks_blocked()

    with FullStore().running() as store:
        store.has_room.set()
        await run_client(write, store)
    assert set(told) == {FULL}


async def test_a_store_that_is_away_for_too_long_is_told(run_client: RunClient) -> None:
    owner = Owner()

    async def write() -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
        pump = new_pump(owner, ("127.0.0.1", port), patience=0.2)
        add(pump, b"event")
        await pump.run()

    await run_client(write)
    assert isinstance(owner.error, UnavailableError)
    assert "s/a/0 could not be written to for 0.2 s: cannot connect to" in str(owner.error)


async def test_a_segment_that_has_ended_is_replaced_and_a_refusal_stays(
    run_client: RunClient,
) -> None:
    async def write(owner: Owner, address: Address) -> None:
        pump = new_pump(owner, address)
        add(pump, b"event")
        with anyio.fail_after(60):
            await pump.run()
        assert len(pump.session.release()) == 1

    ended, refused = Owner(), Owner()
    with BreakingStore(0, 0, NoSuchSegment(2, "s/a/0", "", -1)).running() as store:
        await run_client(write, ended, store.address)
    assert ended.replaced
    assert ended.error is None
    with BreakingStore(0, 0, ErrorMessage(2, "s/a/0", "no", 0)).running() as store:
        await run_client(write, refused, store.address)
    assert isinstance(refused.error, RefusedError)
    assert not refused.replaced
