"""``segstore_client`` beside the official Java client: each reads what the other has written."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from contextlib import ExitStack, suppress
from functools import partial

import anyio
import anyio.to_thread
import pytest
from compat_harness.group_steps import (
    LineProgram,
    SharingReader,
    open_group,
    open_program,
    open_sharing_reader,
)
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

import segstore_client
from segstore_client import ReaderGroup, Store
from segstore_client.states import synchronizer

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills its own server"),
]

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
            store.reader(stream, stop_at_tail=True) as reader,
        ):
            numbers = []
            async for event in reader:
                numbers.append(int(event.data.removeprefix(b"event-")))
                if len(numbers) == 1_000:
                    server.kill_segment_store()
            return numbers


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_events_go_to_and_fro_between_it_and_the_java_client(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
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


class Group:
    """A group of Python readers in this process and Java readers in others, and a writer."""

    def __init__(self, store: Store, name: str, stream: str) -> None:
        self.store = store
        self.group: ReaderGroup = store.group(name)
        self.stream = stream
        self.read: dict[str, list[str]] = {}
        self.java: dict[str, SharingReader] = {}
        self.written = 0

    async def write(self, count: int) -> None:
        async with self.store.writer(self.stream) as writer:
            for number in range(self.written, self.written + count):
                await writer.submit(b"event-%d" % number, key=key_of(number))
        self.written += count

    async def read_on(self, name: str) -> None:
        """Read until the group is at the end of everything."""
        mine = self.read[name] = []
        async with self.group.reader(name) as reader:
            async for event in reader:
                mine.append(event.data.decode())

    @property
    def counts(self) -> dict[str, int]:
        java = {name: len(reader.lines) for name, reader in self.java.items()}
        return java | {name: len(events) for name, events in self.read.items()}

    @property
    def seen(self) -> list[str]:
        found = [event for events in self.read.values() for event in events]
        return found + [line for reader in self.java.values() for line in reader.lines]

    async def write_until_all_read(self) -> None:
        """Write until each reader that is online got events of these, and all are read."""
        before, online = self.counts, await self.group.readers()
        while not all(self.counts[name] > before.get(name, 0) for name in online):
            await self.write(50)
            await anyio.sleep(0.1)
        while (missing := self.written - len(set(self.seen))) > 0:
            print(f"{missing} events are not read yet: {self.counts}")
            await anyio.sleep(0.5)


async def share(
    server: Server, client: JavaClient, scope: str, stack: ExitStack
) -> tuple[Group, list[str]]:
    """Let Java and Python readers come, go and vanish; return the group, and what vanished ones
    had read."""
    with anyio.fail_after(SECONDS_MAX):
        async with segstore_client.connect(server.controller_uri) as store:
            await store.create_scope(scope)
            await store.create_stream(f"{scope}/stream", segments=5)
            await store.create_group(
                f"{scope}/group",
                [f"{scope}/stream"],
                checkpoint_seconds=1.0,
                refresh_seconds=0.2,
            )
            group = Group(store, f"{scope}/group", f"{scope}/stream")

            async def join(name: str) -> None:
                opened = open_sharing_reader(client, server.controller_uri, scope, "group", name)
                group.java[name] = await anyio.to_thread.run_sync(stack.enter_context, opened)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(group.read_on, "python-1")
                await join("java-1")
                await join("java-2")
                tasks.start_soon(group.read_on, "python-2")
                await group.write_until_all_read()
                group.java["java-1"].kill()
                await group.group.remove_reader("java-1")
                vanished = list(group.java["java-1"].lines)
                await group.write_until_all_read()
                gone = await group.group.reader("python-3").__aenter__()
                mine = group.read["python-3"] = []
                while len(mine) < 10:
                    await group.write(20)
                    with anyio.move_on_after(0.2):
                        mine.append((await anext(gone)).data.decode())
                await gone.drop()
                await group.group.remove_reader("python-3")
                vanished += mine
                await anyio.to_thread.run_sync(group.java["java-2"].leave)
                await group.write_until_all_read()
                await join("java-3")
                await group.write_until_all_read()
                await store.seal_stream(group.stream)
            await anyio.to_thread.run_sync(group.java["java-3"].leave)
            return group, vanished


def test_a_group_of_java_and_python_readers_reads_each_event(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the Python readers compact the group's state again and again."""
    monkeypatch.setattr(synchronizer, "COMPACTION_BYTES", 4_000)
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    scope = f"async-{uuid.uuid4().hex[:8]}"
    with Server(tmp_path_factory.mktemp("shared")) as server, ExitStack() as stack:
        group, vanished = anyio.run(share, server, client, scope, stack, backend="trio")
    seen = group.seen
    assert set(seen) == {f"event-{number}" for number in range(group.written)}
    again = [event for event in set(seen) if seen.count(event) > 1]
    assert set(again) <= set(vanished)
    for events in [*group.read.values(), *(reader.lines for reader in group.java.values())]:
        for key in range(KEYS):
            numbers = [int(event.removeprefix("event-")) for event in events]
            mine = [number for number in numbers if number % KEYS == key]
            assert mine == sorted(mine)


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
