"""Groups of Java and Python readers, async and blocking: they share the reading, and each of them
may vanish."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup, TaskStatus
from compat_harness.group_steps import SharingReader, open_sharing_reader
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

import segstore_client
from segstore_client import ReaderGroup, Store, blocking
from segstore_client.steps import state_steps

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="starts its own server"),
]

KEYS = 50
SEGMENTS = 12
SECONDS_MAX = scale(240.0)
SECONDS_PER_READER = 15.0
"""Time, in seconds, in which one reader vanishes, unless the machine is slow."""
KILL_SECONDS = 600.0
"""How long readers are killed in the long form."""
READERS_EACH = 3
KINDS = ("java", "python", "blocking")


class BlockingReader:
    """A reader in a thread of this process, which blocks."""

    def __init__(self, controller_uri: str, group: str, name: str, events: list[str]) -> None:
        self._uri, self._group, self._name = controller_uri, group, name
        self._events = events
        self._may_end, self._has_ended = threading.Event(), threading.Event()

    def read(self, on_joined: Callable[[], None]) -> None:
        """Read until the group is at the end of everything, or the reader vanishes."""
        try:
            with (
                blocking.connect(self._uri) as store,
                store.group(self._group).reader(self._name) as reader,
            ):
                on_joined()
                while not self._may_end.is_set() and not reader.is_finished:
                    if (event := reader.next_event(timeout=0.2)) is not None:
                        self._events.append(event.data.decode())
                if not reader.is_finished:
                    reader.drop()
        finally:
            self._has_ended.set()

    def vanish(self) -> None:
        """End without leaving the group."""
        self._may_end.set()
        self._has_ended.wait()


class Group:
    """A group of Python readers in this process and Java readers in others, and a writer."""

    def __init__(
        self, server: Server, client: JavaClient, store: Store, stack: ExitStack, tasks: TaskGroup
    ) -> None:
        self._server = server
        self._client = client
        self._store = store
        self._stack = stack
        self._tasks = tasks
        self._scope = f"mixed-{uuid.uuid4().hex[:8]}"
        self.stream = f"{self._scope}/stream"
        self.group: ReaderGroup = store.group(f"{self._scope}/group")
        self.events: dict[str, list[str]] = {}
        """What each reader has read."""
        self.written = 0
        self.vanished: set[str] = set()
        self._java: dict[str, SharingReader] = {}
        self._python: dict[str, anyio.CancelScope] = {}
        self._blocking: dict[str, BlockingReader] = {}

    async def make(self) -> None:
        await self._store.create_scope(self._scope)
        await self._store.create_stream(self.stream, segments=SEGMENTS)
        await self._store.create_group(
            self.group.name, [self.stream], checkpoint_seconds=1.0, refresh_seconds=0.2
        )

    async def write(self, count: int) -> None:
        async with self._store.writer(self.stream) as writer:
            for number in range(self.written, self.written + count):
                await writer.submit(b"event-%d" % number, key=f"key-{number % KEYS}")
        self.written += count

    # ---- Readers ---------------------------------------------------------------------------------

    async def join_java(self, name: str) -> None:
        opened = open_sharing_reader(
            self._client, self._server.controller_uri, self._scope, "group", name
        )
        reader = await anyio.to_thread.run_sync(self._stack.enter_context, opened)
        self._java[name] = reader
        self.events[name] = reader.lines

    async def join_python(self, name: str) -> None:
        self.events[name] = []
        self._python[name] = await self._tasks.start(self._read_on, name)

    async def _read_on(self, name: str, *, task_status: TaskStatus[anyio.CancelScope]) -> None:
        """Read until the group is at the end of everything, or the reader vanishes."""
        async with self.group.reader(name) as reader:
            with anyio.CancelScope() as scope:
                # A reader that has not joined yet cannot be taken out of the group.
                task_status.started(scope)
                async for event in reader:
                    self.events[name].append(event.data.decode())
            if scope.cancel_called:
                await reader.drop()

    async def join_blocking(self, name: str) -> None:
        self.events[name] = []
        await self._tasks.start(self._read_in_thread, name)

    async def _read_in_thread(self, name: str, *, task_status: TaskStatus[None]) -> None:
        reader = BlockingReader(
            self._server.controller_uri, self.group.name, name, self.events[name]
        )
        self._blocking[name] = reader
        started = partial(anyio.from_thread.run_sync, task_status.started)
        await anyio.to_thread.run_sync(reader.read, started)

    async def join(self, kind: str, name: str) -> None:
        """Let a reader join that is of a kind of ``KINDS``."""
        joins = {"java": self.join_java, "python": self.join_python, "blocking": self.join_blocking}
        await joins[kind](name)

    async def leave(self, name: str) -> None:
        """Let a Java reader leave the group."""
        await anyio.to_thread.run_sync(self._java.pop(name).leave)

    async def vanish(self, name: str) -> None:
        """End a reader as ``kill -9`` does, and take it out of the group."""
        if name in self._java:
            await anyio.to_thread.run_sync(self._java.pop(name).kill)
        elif name in self._blocking:
            await anyio.to_thread.run_sync(self._blocking.pop(name).vanish)
        else:
            self._python.pop(name).cancel()
            await anyio.sleep(0.1)
        await self.group.remove_reader(name)
        self.vanished.add(name)

    # ---- What was read ---------------------------------------------------------------------------

    async def write_until_all_read(self) -> None:
        """Write until each reader that is online got events of these, and all are read."""
        before = {name: len(events) for name, events in self.events.items()}
        online = await self.group.readers()
        while not all(len(self.events[name]) > before.get(name, 0) for name in online):
            await self.write(50)
            await anyio.sleep(0.1)
        while (missing := self.written - len(set(self._seen()))) > 0:
            online = await self.group.readers()
            print(f"{missing} events are not read yet by {online}")
            await anyio.sleep(0.5)

    def check(self) -> None:
        """See that each event was read, in order, and again only where a reader had vanished."""
        seen = self._seen()
        assert set(seen) == {f"event-{number}" for number in range(self.written)}
        counts: dict[str, int] = {}
        for event in seen:
            counts[event] = counts.get(event, 0) + 1
        again = {event for event, count in counts.items() if count > 1}
        assert again <= {event for name in self.vanished for event in self.events[name]}
        for name, events in self.events.items():
            by_key: dict[int, list[int]] = {}
            for event in events:
                number = int(event.removeprefix("event-"))
                by_key.setdefault(number % KEYS, []).append(number)
            # A reader goes back where it takes over what a reader that vanished had read.
            for numbers in by_key.values():
                for one, two in pairwise(numbers):
                    assert one < two or f"event-{two}" in again, (name, one, two)

    def _seen(self) -> list[str]:
        return [event for events in self.events.values() for event in list(events)]


async def share(server: Server, client: JavaClient, stack: ExitStack) -> Group:
    """Let Java and Python readers come, go and vanish, one after the other."""
    with anyio.fail_after(SECONDS_MAX):
        async with (
            segstore_client.connect(server.controller_uri) as store,
            anyio.create_task_group() as tasks,
        ):
            group = Group(server, client, store, stack, tasks)
            await group.make()
            await group.join_python("python-1")
            await group.join_java("java-1")
            await group.join_java("java-2")
            await group.join_python("python-2")
            await group.join_blocking("blocking-1")
            await group.join_blocking("blocking-2")
            await group.write_until_all_read()
            await group.vanish("java-1")
            await group.write_until_all_read()
            await group.vanish("blocking-2")
            await group.write_until_all_read()
            await group.vanish("python-2")
            await group.leave("java-2")
            await group.write_until_all_read()
            await group.join_java("java-3")
            await group.write_until_all_read()
            await store.seal_stream(group.stream)
            await group.leave("java-3")
    return group


def build_client() -> JavaClient:
    try:
        return JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.proof
def test_a_group_of_java_and_python_readers_reads_each_event(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the Python readers compact the group's state again and again."""
    monkeypatch.setattr(state_steps, "COMPACTION_BYTES", 4_000)
    client = build_client()
    with Server(tmp_path_factory.mktemp("shared")) as server, ExitStack() as stack:
        group = anyio.run(share, server, client, stack, backend="trio")
    group.check()


async def outlive(
    server: Server, client: JavaClient, stack: ExitStack, rng: random.Random, seconds: float
) -> Group:
    """Let a reader vanish every few seconds, and another one come, for at least this time."""
    async with (
        segstore_client.connect(server.controller_uri) as store,
        anyio.create_task_group() as tasks,
    ):
        group = Group(server, client, store, stack, tasks)
        await group.make()
        online = []
        for number in range(READERS_EACH):
            for kind in KINDS:
                await group.join(kind, f"{kind}-{number}")
                online.append(f"{kind}-{number}")
        ends_at = time.monotonic() + seconds
        number = READERS_EACH
        while time.monotonic() < ends_at or len(group.vanished) <= seconds / SECONDS_PER_READER:
            quiet_until = time.monotonic() + rng.uniform(0.5, 6.0)
            while time.monotonic() < quiet_until:
                await group.write(rng.randrange(200))
                await anyio.sleep(0.1)
            victim = online.pop(rng.randrange(len(online)))
            await group.vanish(victim)
            kind = victim.partition("-")[0]
            await group.join(kind, f"{kind}-{number}")
            online.append(f"{kind}-{number}")
            number += 1
        with anyio.fail_after(SECONDS_MAX):
            await group.write_until_all_read()
            await store.seal_stream(group.stream)
            for name in online:
                if name.startswith("java"):
                    await group.leave(name)
        print(f"{group.written} events, {len(group.vanished)} readers vanished")
    return group


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_mixed_group_outlives_its_readers(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.setattr(state_steps, "COMPACTION_BYTES", 16_000)
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    seconds = KILL_SECONDS if pytestconfig.getoption("--full") else KILL_SECONDS / 10
    client = build_client()
    with Server(tmp_path_factory.mktemp("mixed")) as server, ExitStack() as stack:
        group = anyio.run(
            outlive, server, client, stack, random.Random(seed), seconds, backend="trio"
        )
    group.check()
