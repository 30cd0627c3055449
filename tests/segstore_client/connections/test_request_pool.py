"""Many tasks that ask one store, whose replies come in any order or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import ProtocolError
from segstore_client.access.tokens import PLAIN
from segstore_client.connections import request_pool
from support.client_stores import open_pool
from support.event_loops import RunClient
from support.threaded_store import ThreadedStore

TASKS = 20
SILENT, BREAKING = "silent", "breaking"


class ReversingStore:
    """Answers requests in groups of ``TASKS``, the last one first; one for ``SILENT`` never."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)

    @contextlib.contextmanager
    def running(self) -> Iterator[ReversingStore]:
        self._thread.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(30)
            self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections += 1
                with peer, contextlib.suppress(EOFError, ConnectionError):
                    self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        protocol, waiting = Connection(Role.SERVER), list[bytes]()
        while data := peer.recv(65536):
            for command in protocol.receive_data(data):
                if isinstance(command, wire.Hello):
                    peer.sendall(encode(wire.HELLO))
                    continue
                assert isinstance(command, wire.GetSegmentAttribute)
                if command.segment == BREAKING:
                    raise EOFError
                if command.segment != SILENT:
                    value = int(command.segment)
                    waiting.append(encode(wire.SegmentAttribute(command.request_id, value)))
                if len(waiting) == TASKS:
                    peer.sendall(b"".join(reversed(waiting)))
                    waiting.clear()


class StallingStore(ThreadedStore):
    """Reads nothing behind the first request until it may."""

    def __init__(self) -> None:
        super().__init__()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.requests: list[wire.Command | Append] = []
        self.is_asked, self.may_read = threading.Event(), threading.Event()

    def answer(self, command: wire.Command | Append) -> bytes:
        if isinstance(command, wire.Hello):
            return encode(wire.HELLO)
        self.requests.append(command)
        self.is_asked.set()
        self.may_read.wait(60)
        return encode(wire.SegmentAttribute(getattr(command, "request_id", 0), 0))


def ask(segment: str, request_id: int) -> wire.Request:
    return wire.GetSegmentAttribute(request_id, segment, bytes(16), "")


async def test_each_task_gets_the_reply_to_its_own_request(run_client: RunClient) -> None:
    async def use(store: ReversingStore) -> None:
        answers: dict[int, int] = {}

        async def take(number: int) -> None:
            reply = await pool.ask(store.address, PLAIN, partial(ask, str(number)))
            assert isinstance(reply, wire.SegmentAttribute)
            answers[number] = reply.value

        async with open_pool() as pool:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for number in range(3 * TASKS):
                        tasks.start_soon(take, number)
        assert answers == {number: number for number in range(3 * TASKS)}

    with ReversingStore().running() as store:
        await run_client(use, store)
        assert store.connections == 1


async def test_a_broken_connection_is_told_to_all_who_wait_and_opened_again(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_pool, "REPLY_SECONDS", 5.0)

    async def use(store: ReversingStore) -> None:
        errors = []

        async def take(segment: str) -> None:
            try:
                await pool.ask(store.address, PLAIN, partial(ask, segment))
            except ProtocolError as error:
                errors.append(error)

        async with open_pool() as pool:
            with anyio.fail_after(60):
                for _ in range(2):
                    async with anyio.create_task_group() as tasks:
                        for segment in (SILENT, SILENT, BREAKING):
                            tasks.start_soon(take, segment)
        assert len(errors) == 6
        assert len(set(map(id, errors))) == 6

    with ReversingStore().running() as store:
        await run_client(use, store)
        assert store.connections >= 2


async def test_a_request_that_is_cancelled_is_sent_whole(run_client: RunClient) -> None:
    value = bytes(range(256)) * 32 * 1024

    def update(request_id: int) -> wire.Request:
        entry = wire.TableEntry(wire.TableKey(b"key"), value)
        return wire.UpdateTableEntries(request_id, "long", "", (entry,))

    async def use(store: StallingStore) -> None:
        async def take(scope: anyio.CancelScope, make: Callable[[int], wire.Request]) -> None:
            with scope:
                await pool.ask(store.address, PLAIN, make)

        with anyio.fail_after(60):
            async with open_pool() as pool, anyio.create_task_group() as tasks:
                tasks.start_soon(take, anyio.CancelScope(), partial(ask, "first"))
                await anyio.to_thread.run_sync(store.is_asked.wait)
                cancelled = anyio.CancelScope()
                tasks.start_soon(take, cancelled, update)
                await anyio.wait_all_tasks_blocked()
                cancelled.cancel()
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(take, anyio.CancelScope(), partial(ask, "last"))
                await anyio.wait_all_tasks_blocked()
                store.may_read.set()

    with StallingStore().running() as store:
        await run_client(use, store)
    first, long, last = store.requests
    assert isinstance(first, wire.GetSegmentAttribute)
    assert isinstance(long, wire.UpdateTableEntries)
    assert bytes(long.table_entries[0].value) == value
    assert isinstance(last, wire.GetSegmentAttribute)
    assert last.segment == "last"


async def test_a_store_that_is_silent_or_away_is_told(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_pool, "REPLY_SECONDS", 1.0)

    async def use(store: ReversingStore) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            away = listener.getsockname()
        async with open_pool() as pool:
            with anyio.fail_after(60):
                with pytest.raises(ProtocolError, match=r"no reply of .* within 1 s"):
                    await pool.ask(store.address, PLAIN, partial(ask, SILENT))
                with pytest.raises(ProtocolError, match="cannot connect to"):
                    await pool.ask(away, PLAIN, partial(ask, "1"))

    with ReversingStore().running() as store:
        await run_client(use, store)
