"""The queue between feeds and a reader."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from segstore_client.reading.piece_queue import PieceQueue
from support.event_loops import BACKENDS


async def hand_over() -> None:
    queue = PieceQueue[str]()
    put: list[str] = []

    async def feed(name: str) -> None:
        for number in range(3):
            await queue.put(f"{name}{number}")
            put.append(f"{name}{number}")

    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(feed, name)
        await anyio.wait_all_tasks_blocked()
        taken = []
        for count in range(6):
            # A feed waits with its next piece until this one was taken.
            assert len(put) == count
            await queue.wait()
            taken.append(queue.take())
            await anyio.wait_all_tasks_blocked()
    # Which of the feeds is first is the loop's choice.
    assert [each for each in taken if each[0] == "a"] == ["a0", "a1", "a2"]
    assert [each for each in taken if each[0] == "b"] == ["b0", "b1", "b2"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_feed_waits_until_its_piece_was_taken(backend: str) -> None:
    anyio.run(hand_over, backend=backend)


async def give_up() -> None:
    queue = PieceQueue[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.put, "never taken")
        await queue.wait()
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(0.01) as scope:
        await queue.wait()
    assert scope.cancelled_caught


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_piece_of_a_feed_that_ended_is_gone(backend: str) -> None:
    anyio.run(give_up, backend=backend)


async def cancel_natively(turns: int) -> list[int]:
    """Take what a feed puts; each wait is cancelled after so many turns of the loop."""
    queue = PieceQueue[int]()

    async def feed() -> None:
        for number in range(20):
            await asyncio.sleep(0)
            await queue.put(number)

    feeding = asyncio.create_task(feed())
    taken: list[int] = []
    while len(taken) < 20:
        waiting = asyncio.create_task(queue.wait())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
            taken.append(queue.take())
    await feeding
    return taken


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_wait_that_is_cancelled_loses_nothing(turns: int) -> None:
    assert asyncio.run(cancel_natively(turns)) == list(range(20))
