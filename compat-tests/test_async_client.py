"""``segstore_client`` beside the official Java client: each reads what the other has written."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeVar

import anyio
import pytest
from compat_harness.group_steps import LineProgram, open_group, open_program
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

import segstore_client
from support.rare_parameters import mark_rare

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills its own server"),
]

T = TypeVar("T")
BACKENDS = mark_rare(["asyncio", "trio"], 1)
KEYS = 7
EVENTS = 3_000
SECONDS_MAX = scale(180.0)


def key_of(number: int) -> str:
    """Return the key that ``GroupSteps`` gives the event, too."""
    return f"key-{number % KEYS}"


async def write_among_kills(server: Server, stream: str) -> None:
    """Write events; kill store and controller when the last kill's first event was stored."""
    victims = {500: server.kill_segment_store, 1_500: server.kill_controller}
    with anyio.fail_after(SECONDS_MAX):
        async with (
            segstore_client.connect(server.controller_uri) as store,
            store.writer(stream) as writer,
        ):
            for number in range(EVENTS):
                event = b"event-%d" % number
                if (kill := victims.get(number)) is None:
                    await writer.submit(event, key=key_of(number))
                else:
                    await writer.write(event, key=key_of(number))
                    kill()


async def write_transactions(server: Server, stream: str, first: int) -> None:
    """Commit a transaction of ten events, and abort another one of ten."""
    with anyio.fail_after(SECONDS_MAX):
        async with segstore_client.connect(server.controller_uri) as store:
            async with store.transaction(stream) as transaction:
                for number in range(first, first + 10):
                    await transaction.submit(b"event-%d" % number, key=key_of(number))
            with suppress(ZeroDivisionError):
                async with store.transaction(stream) as transaction:
                    for number in range(10):
                        await transaction.write(b"event-%d" % number, key=key_of(number))
                    _ = 1 / 0


async def read_all(server: Server, stream: str) -> list[int]:
    """Return the numbers of the events up to the present end, in the order of reading."""
    with anyio.fail_after(SECONDS_MAX):
        async with (
            segstore_client.connect(server.controller_uri) as store,
            store.reader(stream, end=segstore_client.Position.TAIL) as reader,
        ):
            numbers = []
            async for event in reader:
                numbers.append(int(event.data.removeprefix(b"event-")))
                if len(numbers) == 1_000:
                    server.kill_segment_store()
            return numbers


async def write_bytes_among_kills(server: Server, stream: str, data: bytes) -> None:
    """Append bytes to a new stream; kill the store while they are under way."""
    third = len(data) // 3
    with anyio.fail_after(SECONDS_MAX):
        async with segstore_client.connect(server.controller_uri) as store:
            await store.create_scope(stream.split("/", maxsplit=1)[0], exist_ok=True)
            await store.create_stream(stream)
            async with store.byte_writer(stream) as file:
                await file.write(data[:third])
                await file.flush()
                await file.write(data[third : 2 * third])
                server.kill_segment_store()
                await file.write(data[2 * third :])
                assert file.tell() == len(data)


async def read_bytes(server: Server, stream: str) -> bytes:
    """Return all bytes of a sealed stream; kill the store after the first."""
    with anyio.fail_after(SECONDS_MAX):
        async with (
            segstore_client.connect(server.controller_uri) as store,
            store.byte_reader(stream) as file,
        ):
            found = await file.read(1000)
            server.kill_segment_store()
            return found + b"".join([piece async for piece in file])


async def seal_bytes(server: Server, stream: str, head: int) -> None:
    """Truncate a byte stream, and seal it."""
    async with (
        segstore_client.connect(server.controller_uri) as store,
        store.byte_writer(stream) as file,
    ):
        await file.truncate_before(head)
        await file.seal()


async def write_events(server: Server, stream: str, events: list[bytes]) -> None:
    async with (
        segstore_client.connect(server.controller_uri) as store,
        store.writer(stream) as writer,
    ):
        for event in events:
            await writer.write(event, key="key")


async def read_events(server: Server, stream: str) -> list[bytes]:
    async with (
        segstore_client.connect(server.controller_uri) as store,
        store.reader(stream, end=segstore_client.Position.TAIL) as reader,
    ):
        return [event.data async for event in reader]


def build_client() -> JavaClient:
    try:
        return JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_go_to_and_fro_between_it_and_the_java_client(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("files")
    draw = Random(5)
    ours, theirs = draw.randbytes(20_000_003), draw.randbytes(9_000_001)
    (directory / "theirs").write_bytes(theirs)

    def copy(how: str, stream: str, name: str) -> None:
        client.run_program(
            "compat.FileCopies",
            how,
            *stream.split("/"),
            str(directory / name),
            seconds_max=SECONDS_MAX,
            controller=server.controller_uri,
        )

    def run(main: Callable[..., Awaitable[T]], stream: str, *arguments: object) -> T:
        return anyio.run(partial(main, server, stream, *arguments), backend=backend)

    client = build_client()
    with Server(tmp_path_factory.mktemp("async")) as server:
        # Each stream gets bytes of both; one client seals it, and both read it.
        run(write_bytes_among_kills, "bytes/one", ours)
        copy("seal", "bytes/one", "theirs")
        run(write_bytes_among_kills, "bytes/two", ours)
        copy("write", "bytes/two", "theirs")
        run(seal_bytes, "bytes/two", 1_000_000)
        for stream, expected in (
            ("bytes/one", ours + theirs),
            ("bytes/two", (ours + theirs)[1_000_000:]),
        ):
            copy("read", stream, "copy")
            assert (directory / "copy").read_bytes() == expected
            assert run(read_bytes, stream) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_events_go_to_and_fro_between_it_and_the_java_client(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("files")
    theirs = Random(6).randbytes(9_000_001)
    (directory / "theirs").write_bytes(theirs)
    long = b"event-7" + b" " * 17_000_000
    client = build_client()
    with (
        Server(tmp_path_factory.mktemp("async")) as server,
        open_group(client, server.controller_uri, "long", segments=2) as group,
    ):
        ours = [b"event-6", long, b"event-8"]
        anyio.run(partial(write_events, server, "long/stream", ours), backend=backend)
        assert group.read(3) == [6, 7, 8]
        client.run_program(
            "compat.FileCopies",
            "event",
            "long",
            "stream",
            str(directory / "theirs"),
            seconds_max=SECONDS_MAX,
            controller=server.controller_uri,
        )
        found = anyio.run(partial(read_events, server, "long/stream"), backend=backend)
    assert sorted(found) == sorted([*ours, theirs])


@pytest.mark.parametrize("backend", BACKENDS)
def test_events_go_to_and_fro_between_it_and_the_java_client(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = build_client()
    scope = f"async-{uuid.uuid4().hex[:8]}"
    stream = f"{scope}/stream"
    with (
        Server(tmp_path_factory.mktemp("async")) as server,
        open_group(client, server.controller_uri, scope, segments=3) as group,
    ):
        anyio.run(partial(write_among_kills, server, stream), backend=backend)
        assert group.step(f"write {EVENTS} 100 0") == "written"
        anyio.run(partial(write_transactions, server, stream, EVENTS + 100), backend=backend)
        total = EVENTS + 110
        assert group.read(total) == list(range(total))
        numbers = anyio.run(partial(read_all, server, stream), backend=backend)
    by_key = defaultdict(list)
    for number in numbers:
        by_key[key_of(number)].append(number)
    assert sorted(numbers) == list(range(total))
    assert all(each == sorted(each) for each in by_key.values())


def test_a_state_is_shared_with_the_java_client(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both change it, and each compacts it for the other."""
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    scope = f"async-{uuid.uuid4().hex[:8]}"

    async def share_names(server: Server, java: LineProgram) -> None:
        async with (
            segstore_client.connect(server.controller_uri) as store,
            store.synchronizer(
                f"{scope}/names",
                load=lambda data: data.decode().split(),
                apply=lambda names, update: [*names, update.decode()],
            ) as names,
        ):
            assert not await names.begin(b"too late")
            assert await names.read() == ["java"]
            await names.change(lambda _: [b"one", b"two"])
            assert java.step("names") == "java one two"
            assert java.step("add three") == "added"
            await names.change(lambda state: [str(len(state)).encode()])
            expected = ["java", "one", "two", "three", "4"]
            assert await names.read() == expected
            for _ in range(3):
                assert await names.compact(lambda state: " ".join(state).encode())
                assert java.step("names").split() == expected
                assert java.step("compact") == "compacted"
                assert java.step("add more") == "added"
                expected = [*expected, "more"]
                assert await names.read() == expected

    with Server(tmp_path_factory.mktemp("shared")) as server:
        opened = open_program(
            client, server.controller_uri, "compat.SharedNames", scope, "names", "java"
        )
        with opened as java:
            anyio.run(share_names, server, java, backend="trio")
