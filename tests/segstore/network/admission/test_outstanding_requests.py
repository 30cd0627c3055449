from __future__ import annotations

import pytest
import trio
import trio.testing

from segstore.network.admission.outstanding_requests import OutstandingRequests, OutstandingTotal
from segstore.process.config import ConnectionSettings

SETTINGS = ConnectionSettings(
    outstanding_bytes_free=10, outstanding_bytes_max=100, outstanding_bytes_total_max=500
)


def test_the_defaults_are_the_protocols() -> None:
    settings = ConnectionSettings()
    assert settings.outstanding_bytes_free == 1 << 20
    assert settings.outstanding_bytes_max == 128 << 20
    assert settings.outstanding_bytes_total_max == 512 << 20


SEGMENT = "examples/test/0"
OTHER = "examples/test/1"


def test_a_lonely_connection_may_have_half_of_the_shared_bytes() -> None:
    total = OutstandingTotal(SETTINGS)
    one, share = OutstandingRequests(total), total.share_of(SEGMENT)
    one.add(99, share)
    assert not one.is_full
    one.add(1, share)
    assert one.is_full


def test_the_more_all_have_the_less_one_may_have() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others, share = (
        OutstandingRequests(total),
        OutstandingRequests(total),
        total.share_of(SEGMENT),
    )
    others.add(150, share)
    one.add(24, share)
    assert not one.is_full
    one.add(1, share)
    assert one.is_full


def test_the_first_bytes_are_free() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others, share = (
        OutstandingRequests(total),
        OutstandingRequests(total),
        total.share_of(SEGMENT),
    )
    others.add(480, share)
    one.add(9, share)
    assert not one.is_full
    one.add(1, share)
    assert one.is_full


def test_containers_that_stand_still_leave_room_for_the_others() -> None:
    total = OutstandingTotal(SETTINGS, 4)
    one = OutstandingRequests(total)
    shares = [total.share_of(f"examples/test/{number}") for number in range(2)]
    assert shares[0] is not shares[1]
    for stopped, left in zip(shares, (250, 125), strict=True):
        while stopped.has_room(1):
            one.add(1, stopped)
        assert total.total_max - total.total == left
    third = total.share_of("_system/_RGx/0")
    assert third.has_room(124)
    assert total.share_of("_system/containers/metadata_17") is not third


def test_a_share_without_bytes_has_room_for_one_command_of_any_length() -> None:
    total = OutstandingTotal(SETTINGS, 4)
    one, stopped, share = OutstandingRequests(total), total.share_of(OTHER), total.share_of(SEGMENT)
    one.add(10_000, stopped)
    assert share.has_room(1 << 20)
    one.add(1, share)
    assert not share.has_room(1)


@pytest.mark.parametrize("total_max", [1000, 64 << 20])
def test_every_share_has_room_before_the_total_is_tight(total_max: int) -> None:
    settings = ConnectionSettings(outstanding_bytes_total_max=total_max)
    total = OutstandingTotal(settings, 2)
    one, share = OutstandingRequests(total), total.share_of(SEGMENT)
    one.add(max(0, total.tight_from - 1), share)
    assert one.is_tight == (total.tight_from <= 0)
    assert one.is_tight or share.has_room(0xFF_FFFF)


async def test_a_release_on_the_share_wakes_those_who_wait_for_it_and_no_others() -> None:
    total = OutstandingTotal(SETTINGS, 4)
    one, shares = OutstandingRequests(total), [total.share_of(SEGMENT), total.share_of(OTHER)]
    for share in shares:
        one.add(200, share)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares[0].wait_for_room, 50)
        nursery.start_soon(shares[1].wait_for_room, 50)
        await trio.testing.wait_all_tasks_blocked()
        one.release(200, shares[1])
        await trio.testing.wait_all_tasks_blocked()
        assert not shares[1].waiting
        assert len(shares[0].waiting) == 1
        one.release(1, shares[0])
    assert not shares[0].waiting


async def test_a_release_of_the_connection_wakes_it() -> None:
    total = OutstandingTotal(SETTINGS)
    one, others, share = (
        OutstandingRequests(total),
        OutstandingRequests(total),
        total.share_of(SEGMENT),
    )
    one.add(20, share)
    others.add(480, share)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        others.release(1, share)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        one.release(11, share)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    total = OutstandingTotal(SETTINGS)
    one, share = OutstandingRequests(total), total.share_of(SEGMENT)
    one.add(500, share)
    with trio.move_on_after(0.01):
        await one.wait_for_room()
    with trio.move_on_after(0.01):
        await share.wait_for_room(1)
    assert not share.waiting
    assert not one._waiting
