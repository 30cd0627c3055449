"""Programs that are cancelled at each of their waits, beside a real store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import segstore_client
from segstore_client import Position, Store
from segstore_client.connections import connection
from segstore_client.connections.socket_stream import SocketStream
from support.event_loops import RunClient
from support.served_stream import served_stream

SECONDS = 60.0
KEYS = ("a", "b")


class Cancelling:
    """Awaits a program, and cancels its scope when it waits for the ``turn``-th time."""

    def __init__(
        self, program: Coroutine[Any, Any, None], scope: anyio.CancelScope, turn: int
    ) -> None:
        self.waits = 0
        self._program = program
        self._scope = scope
        self._turn = turn

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._program.__await__()
        step, value = steps.send, None
        while True:
            try:
                waited = step(value)
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self._turn:
                self._scope.cancel()
            try:
                step, value = steps.send, (yield waited)
            except BaseException as error:
                step, value = steps.throw, error


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[SocketStream]:
    """Return a list that gets the connections to segment stores."""
    connect, opened = connection.connect_stream, list[SocketStream]()

    async def note(*arguments: Any) -> SocketStream:
        opened.append(await connect(*arguments))
        return opened[-1]

    monkeypatch.setattr(connection, "connect_stream", note)
    return opened


async def cancel_at_each_wait(
    run: Callable[[int], Coroutine[Any, Any, None]],
    check: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Run a program again and again, with a number, and cancel it at one wait more each time, until
    it comes to its end before."""
    for turn in count(1):
        with anyio.fail_after(SECONDS), anyio.CancelScope() as scope:
            program = Cancelling(run(turn), scope, turn)
            await program
        if check is not None:
            await check(turn)
        if program.waits < turn:
            break
    assert turn > 5


async def read_all(store: Store) -> Counter[bytes]:
    async with store.reader("s/t", end=Position.TAIL) as reader:
        return Counter([event.data async for event in reader])


async def cancel_writers(store: Store) -> None:
    submitted, stored = set[bytes](), set[bytes]()

    async def write(turn: int) -> None:
        events = [b"%d-%d" % (turn, number) for number in range(4)]
        async with store.writer("s/t") as writer:
            for event in events[:3]:
                submitted.add(event)
                await writer.submit(event, key=KEYS[event[-1] % 2])
            submitted.add(events[3])
            await writer.write(events[3], key=KEYS[1])
            stored.add(events[3])
        stored.update(events)

    await cancel_at_each_wait(write)
    found = await read_all(store)
    assert stored <= found.keys() <= submitted
    assert set(found.values()) == {1}


async def cancel_transactions(store: Store) -> None:
    committed = set[int]()

    async def write(turn: int) -> None:
        async with store.transaction("s/t") as transaction:
            await transaction.submit(b"%d-a" % turn, key=KEYS[0])
            await transaction.write(b"%d-b" % turn, key=KEYS[1])
        committed.add(turn)

    await cancel_at_each_wait(write)
    found = await read_all(store)
    assert set(found.values()) == {1}
    whole = {int(event.split(b"-")[0]) for event in found}
    assert found.keys() == {b"%d-%s" % (turn, end) for turn in whole for end in (b"a", b"b")}
    assert committed <= whole


async def cancel_readers(store: Store) -> None:
    async with store.writer("s/t") as writer:
        for number in range(20):
            await writer.submit(b"%d" % number, key=KEYS[number % 2])
    found: dict[int, int] = {}

    async def read(turn: int) -> None:
        found[turn] = sum((await read_all(store)).values())

    await cancel_at_each_wait(read)
    assert set(found.values()) == {20}


async def cancel_readers_of_a_group(store: Store) -> None:
    await store.create_group("s/g", ["s/t"], checkpoint_seconds=None, refresh_seconds=0.05)
    group = store.group("s/g")
    numbers, seen = count(), Counter[bytes]()
    async with store.writer("s/t") as writer:

        async def read(turn: int) -> None:
            for _ in range(2):
                await writer.write(b"%d" % next(numbers), key=KEYS[turn % 2])
            async with group.reader("a") as reader:
                taken: bytes | None = None
                for _ in range(2):
                    # By asking, the program says that it is done with the event before.
                    if taken is not None:
                        seen[taken] += 1
                    taken = None
                    taken = (await anext(reader)).data
                # So it says by leaving the block.
                assert taken is not None
                seen[taken] += 1

        async def check(turn: int) -> None:
            assert await group.readers() == []

        await cancel_at_each_wait(read, check)
        written = next(numbers)
        async with group.reader("last") as reader:
            while seen.total() < written:
                seen[(await anext(reader)).data] += 1
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    "program", [cancel_writers, cancel_transactions, cancel_readers, cancel_readers_of_a_group]
)
async def test_a_program_that_is_cancelled_at_any_wait_leaves_nothing_half_done(
    program: Callable[[Store], Awaitable[None]],
    tmp_path: Path,
    run_client: RunClient,
    connections: list[SocketStream],
) -> None:
    async def run(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await program(store)
        assert {each.fileno() for each in connections} == {-1}

    async with served_stream(tmp_path, 0) as stream:
        await stream.scale((0.0, 0.5), (0.5, 1.0))
        await run_client(run, stream.address)
