from __future__ import annotations

import trio
import trio.testing

from pravega_controller.metadata.locks import KeyedLocks


async def test_one_key_is_held_by_one_task_and_others_in_turn() -> None:
    locks = KeyedLocks()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with locks.hold("k"):
            order.append(number)
            await trio.testing.wait_all_tasks_blocked()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(hold, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order in ([0, 0, 1, 1, 2, 2],)


async def test_keys_do_not_wait_for_each_other_and_leave_nothing_behind() -> None:
    locks = KeyedLocks()
    async with locks.hold("a"):
        with trio.fail_after(60):
            async with locks.hold("b"):
                pass
    assert not locks._locks


async def test_a_cancelled_waiter_lets_the_next_one_through() -> None:
    locks = KeyedLocks()
    got: list[str] = []

    async def hold(name: str) -> None:
        async with locks.hold("k"):
            got.append(name)

    async with trio.open_nursery() as nursery, locks.hold("k"):
        async with trio.open_nursery() as impatient:
            impatient.start_soon(hold, "impatient")
            await trio.testing.wait_all_tasks_blocked()
            impatient.cancel_scope.cancel()
        nursery.start_soon(hold, "patient")
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
    assert got == ["patient"]
    assert not locks._locks
