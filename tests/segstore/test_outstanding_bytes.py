from __future__ import annotations

import trio
import trio.testing

from segstore.config import ConnectionSettings
from segstore.outstanding_bytes import OutstandingBytes, OutstandingTotal

SETTINGS = ConnectionSettings(
    outstanding_bytes_free=10, outstanding_bytes_max=100, outstanding_bytes_total_max=500
)


def test_the_defaults_are_the_protocols() -> None:
    settings = ConnectionSettings()
    assert settings.outstanding_bytes_free == 1 << 20
    assert settings.outstanding_bytes_max == 128 << 20
    assert settings.outstanding_bytes_total_max == 512 << 20


def test_a_lonely_connection_may_have_half_of_the_shared_bytes() -> None:
    one = OutstandingBytes(OutstandingTotal(SETTINGS))
    one.add(99)
    assert not one.is_full
    one.add(1)
    assert one.is_full


def test_the_more_all_have_the_less_one_may_have() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others = OutstandingBytes(total), OutstandingBytes(total)
    others.add(150)
    one.add(24)
    assert not one.is_full
    one.add(1)
    assert one.is_full


def test_the_first_bytes_are_free_until_the_total_is_full() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others = OutstandingBytes(total), OutstandingBytes(total)
    others.add(480)
    one.add(9)
    assert not one.is_full
    one.add(1)
    assert one.is_full
    one.release(10)
    others.add(20)
    assert one.is_full


async def test_a_release_anywhere_wakes_those_who_wait() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others = OutstandingBytes(total), OutstandingBytes(total)
    one.add(20)
    others.add(480)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        others.release(1)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        others.release(479)
    assert not total.waiting


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    total = OutstandingTotal(SETTINGS)
    one = OutstandingBytes(total)
    one.add(500)
    with trio.move_on_after(0.01):
        await one.wait_for_room()
    assert not total.waiting
