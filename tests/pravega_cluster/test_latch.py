"""The queue for leadership: turns, names, lost answers, sessions that end."""

from __future__ import annotations

import re
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pravega_cluster.latch import LeaderLatch
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import SessionLostError, ensure_path

PATH = "/pravega/test/cluster/faulthandlerleader"


class Waiter:
    """Waits for leadership in a session of its own."""

    def __init__(self, server: MemoryZooKeeper, seed: int) -> None:
        self.session: MemorySession = server.open_session()
        self.latch = LeaderLatch(self.session, PATH, random=Random(seed))
        self.leads = False

    async def run(self) -> None:
        await self.latch.wait_to_lead()
        self.leads = True


async def test_turns_are_taken_in_order(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    waiters = [Waiter(server, seed) for seed in range(4)]
    async with trio.open_nursery() as nursery:
        for waiter in waiters:
            nursery.start_soon(waiter.run)
            await wait_all_tasks_blocked()
        assert [waiter.leads for waiter in waiters] == [True, False, False, False]
        began = trio.current_time()
        await waiters[2].latch.give_up()
        await waiters[0].latch.give_up()
        await wait_all_tasks_blocked()
        assert [waiter.leads for waiter in waiters] == [True, True, False, False]
        server.end_session(waiters[1].session)
        await wait_all_tasks_blocked()
        assert trio.current_time() == began
        assert not await waiters[0].latch.leads()
        nursery.cancel_scope.cancel()


async def test_names_are_those_of_curator() -> None:
    server = MemoryZooKeeper()
    waiter = Waiter(server, 1)
    await waiter.run()
    [name] = await waiter.session.children(PATH)
    assert re.fullmatch(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-[0-9]{10}", name)


async def test_only_the_number_counts_in_a_name(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    other = server.open_session()
    await ensure_path(other, PATH)
    # Of another process, by its name the last of all; and one that is in no queue.
    await other.create(
        f"{PATH}/_c_ffffffff-ffff-4fff-bfff-ffffffffffff-lock-",
        b"",
        is_ephemeral=True,
        is_sequential=True,
    )
    await other.create(f"{PATH}/strange", b"")
    waiter = Waiter(server, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter.run)
        await trio.sleep(100)
        assert not waiter.leads
        server.end_session(other)
        await wait_all_tasks_blocked()
        assert waiter.leads


async def test_a_lost_session_ends_the_waiting() -> None:
    server = MemoryZooKeeper()
    first, second = Waiter(server, 1), Waiter(server, 2)
    await first.run()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.run)
            await wait_all_tasks_blocked()
            server.end_session(second.session)
    assert caught.group_contains(SessionLostError)
    assert await first.latch.leads()


@pytest.mark.parametrize("seed", range(20))
async def test_lost_answers_make_no_second_node(seed: int, autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    random = Random(seed)
    losses = [Loss.NONE, Loss.NONE, Loss.ANSWER, Loss.CALL]
    server.lose_answer = lambda path: random.choice(losses)
    waiters = [Waiter(server, number) for number in range(3)]
    async with trio.open_nursery() as nursery:
        for waiter in waiters:
            nursery.start_soon(waiter.run)
        await trio.sleep(300)
        server.lose_answer = lambda path: Loss.NONE
        await trio.sleep(20)
        assert len(await waiters[0].session.children(PATH)) == len(waiters)
        assert [waiter.leads for waiter in waiters].count(True) == 1
        nursery.cancel_scope.cancel()
