"""Clients that take what they can from a store of real processes, and the others that go on."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import grpc
import pytest
from tests.pravega_admin.conftest import Standalone

from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.connection import append_block

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(count)
        ]


def append(connection: SegmentConnection, number: int, data: bytes = b"x") -> None:
    connection.send_bytes(
        append_block(WRITER, [data], last_event_number=number, request_id=number, framed=False)
    )
    reply = connection.receive()
    assert isinstance(reply, wire.DataAppended)
    assert reply.event_number == number


def set_up(connection: SegmentConnection) -> None:
    created = connection.call(wire.CreateSegment(1, SEGMENT, 0, 0, ""))
    assert isinstance(created, wire.SegmentCreated)
    assert isinstance(connection.call(wire.SetupAppend(2, WRITER, SEGMENT, "")), wire.AppendSetup)


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def log_lines(store: Standalone, event: str) -> list[dict[str, object]]:
    lines = (line for line in store.log.read_text().splitlines() if line.startswith("{"))
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_idle_connections_leave_the_journal_its_descriptors(
    new_store: Callable[[], Standalone],
) -> None:
    store = new_store()
    store.descriptor_limits = "256:256"
    store.start()
    with SegmentConnection("127.0.0.1", store.segment_store_port) as connection:
        set_up(connection)
        append(connection, 1)
        with idle_connections(store.segment_store_port, 300) as idle:
            # More than what the journal's present files take: it makes and opens others.
            for number in range(2, 12):
                append(connection, number, bytes(8 << 20))
            pid = store.pid_of("segment-store-0")
            assert descriptor_count(pid) < 200
            # Those beyond the bound were closed at once.
            wait_until(lambda: sum(map(is_closed, idle)) >= 170)
            with pytest.raises((ConnectionLostError, ConnectionResetError)):
                SegmentConnection("127.0.0.1", store.segment_store_port, timeout=60)
        wait_until(lambda: descriptor_count(pid) < 40)
        with SegmentConnection("127.0.0.1", store.segment_store_port) as other:
            assert isinstance(
                other.call(wire.GetStreamSegmentInfo(1, SEGMENT, "")), wire.StreamSegmentInfo
            )
    refused = log_lines(store, "connection refused")
    assert 1 <= len(refused) <= 5
    assert not log_lines(store, "container failed")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(1000):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.proof
def test_idle_connections_leave_the_controller_its_descriptors(
    new_store: Callable[[], Standalone],
) -> None:
    store = new_store()
    store.descriptor_limits = "256:256"
    store.start()
    pid = store.pid_of("controller")
    with grpc.insecure_channel(f"127.0.0.1:{store.controller_port}") as channel:
        create_scope(channel, "before")
        with idle_connections(store.controller_port, 300) as idle:
            create_scope(channel, "meanwhile")
            assert descriptor_count(pid) < 250
            wait_until(lambda: sum(map(is_closed, idle)) >= 50)
            # Whoever says nothing gives its place back.
            wait_until(lambda: descriptor_count(pid) < 60)
            with grpc.insecure_channel(
                f"127.0.0.1:{store.controller_port}",
                options=[("grpc.use_local_subchannel_pool", 1)],
            ) as another:
                create_scope(another, "after")


def create_scope(channel: grpc.Channel, name: str) -> None:
    method = channel.unary_unary(
        "/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope",
        request_serializer=pb.ScopeInfo.SerializeToString,
        response_deserializer=pb.CreateScopeStatus.FromString,
    )
    status = method(pb.ScopeInfo(scope=name), timeout=60)
    assert status.status == pb.CreateScopeStatus.SUCCESS


def test_the_soft_limit_is_raised(new_store: Callable[[], Standalone]) -> None:
    store = new_store()
    store.descriptor_limits = "64:2048"
    store.start()
    for part in ("segment-store-0", "controller"):
        limits = Path(f"/proc/{store.pid_of(part)}/limits").read_text()
        [line] = [each for each in limits.splitlines() if each.startswith("Max open files")]
        assert line.split()[3:5] == ["2048", "2048"]
    [line] = log_lines(store, "segment store serves")
    assert 1000 < line["connections_max"] < 2048


def test_a_limit_that_is_too_low_is_told(new_store: Callable[[], Standalone]) -> None:
    store = new_store()
    store.descriptor_limits = "100:100"
    with pytest.raises(AssertionError, match="not ready"):
        store.start()
    assert store.process is not None
    assert store.process.wait(30) == 78


CACHE_MB = 64
BEYOND_CACHE_MB = 200
LAG_SECONDS = 1.0
"""Maximum time of a processor that the store may spend before it answers another client, however
busy the machine is. Each of the attacks took longer."""


class Watch:
    """The memory that a segment store takes while it is attacked, and the waiting times of
    others."""

    def __init__(self, store: Standalone) -> None:
        self._pid = store.pid_of("segment-store-0")
        self._port = store.segment_store_port
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._weigh, self._ask)]
        self.memory_mb = 0.0
        self.longest_answer = 0.0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        assert self.memory_mb < CACHE_MB + BEYOND_CACHE_MB
        assert self.longest_answer < LAG_SECONDS

    def _weigh(self) -> None:
        while not self._ended.wait(0.01):
            pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
            self.memory_mb = max(self.memory_mb, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)

    def _ask(self) -> None:
        with SegmentConnection("127.0.0.1", self._port) as connection:
            while not self._ended.wait(0.01):
                began = self._processor_seconds()
                connection.call(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
                self.longest_answer = max(self.longest_answer, self._processor_seconds() - began)

    def _processor_seconds(self) -> float:
        """Return how long the store has run on processors."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def small_cache(new_store: Callable[[], Standalone], tmp_path: Path) -> Standalone:
    store = new_store()
    store.settings = tmp_path / "settings.toml"
    store.settings.write_text(f"[segment_store]\ncache_bytes_max = {CACHE_MB << 20}\n")
    store.start()
    return store


def send_what_fits(client: socket.socket, data: bytes) -> None:
    client.settimeout(0.1)
    with suppress(TimeoutError):
        client.sendall(data)


READ_TABLE = 78


@pytest.mark.proof
@pytest.mark.parametrize("ends", [False, True])
def test_commands_that_stop_in_the_middle_take_bounded_memory(
    small_cache: Standalone, ends: bool
) -> None:
    store = small_cache
    half = struct.pack(">ii", READ_TABLE, 15 << 20) + bytes(14 << 20)
    with SegmentConnection("127.0.0.1", store.segment_store_port) as connection, Watch(store) as it:
        set_up(connection)
        with idle_connections(store.segment_store_port, 60) as clients:
            for client in clients:
                send_what_fits(client, half)
                if ends:
                    client.close()
            append(connection, 1, bytes(1 << 20))
            append(connection, 2, bytes(8 << 20))
        append(connection, 3)
    it.check()


def test_reads_of_clients_that_do_not_read_take_bounded_memory(small_cache: Standalone) -> None:
    store = small_cache
    data = os.urandom(2 << 20)
    reads = b"".join(encode(wire.ReadSegment(SEGMENT, 0, 2 << 20, "", n)) for n in range(40))
    with SegmentConnection("127.0.0.1", store.segment_store_port) as connection, Watch(store) as it:
        set_up(connection)
        with idle_connections(store.segment_store_port, 100) as clients:
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                client.sendall(encode(wire.HELLO) + reads)
            reader = SegmentConnection("127.0.0.1", store.segment_store_port)
            reader.send(wire.ReadSegment(SEGMENT, 0, 2 << 20, "", 7))
            time.sleep(0.5)
            append(connection, 1, data)
            # One that reads gets its data, if in shorter replies.
            found = b""
            while len(found) < len(data):
                reply = reader.receive()
                assert isinstance(reply, wire.SegmentRead)
                found += reply.data
                reader.send(wire.ReadSegment(SEGMENT, len(found), 2 << 20, "", 8))
            assert found == data
            append(connection, 2)
            reader.close()
    it.check()


TABLE = "scope/table_kvtable/0.#epoch.0"


def key(number: int) -> wire.TableKey:
    return wire.TableKey(b"%d" % number, wire.NO_VERSION)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wire.MergeSegmentsBatch(
            9, SEGMENT, tuple(f"{SEGMENT}#transaction.{number}" for number in range(240_000)), ""
        ),
        lambda: wire.ReadTable(9, TABLE, "", tuple(map(key, range(500_000)))),
        lambda: wire.UpdateTableEntries(
            9,
            TABLE,
            "",
            tuple(wire.TableEntry(key(number), b"") for number in range(300_000)),
            -1,
        ),
    ],
)
def test_requests_with_endless_lists_hold_up_nobody(
    small_cache: Standalone, make: Callable[[], wire.Request]
) -> None:
    store = small_cache
    data = encode(make())
    with SegmentConnection("127.0.0.1", store.segment_store_port) as connection, Watch(store) as it:
        set_up(connection)
        with SegmentConnection("127.0.0.1", store.segment_store_port) as attacker:
            attacker.send_bytes(data)
            with pytest.raises(ConnectionLostError):
                attacker.receive()
        append(connection, 1)
    it.check()
    [line] = log_lines(store, "connection closed")
    assert "at most 4096" in str(line["reason"])
