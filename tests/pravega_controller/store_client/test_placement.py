"""Segments are placed on stores by a fixed list and by the map of a cluster."""

from __future__ import annotations

import pytest

from pravega_cluster.records import Host
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.store_client.placement import MapPlacement, StaticPlacement
from pravega_wire import names

SEGMENTS = [f"s/a/{number}.#epoch.0" for number in range(50)]


def test_a_fixed_list_shares_containers_in_turn() -> None:
    placement = StaticPlacement((("h", 1), ("h", 2)), 5)
    for segment in SEGMENTS:
        port = 1 + names.container_of(segment, 5) % 2
        assert placement.store_of(segment) == ("h", port)
        assert placement.address_for(segment, "dialled") == ("dialled", port)


def test_a_fixed_list_shares_containers_as_it_is_told() -> None:
    owners = (1, 1, 0, 1, 0)
    placement = StaticPlacement((("h", 1), ("h", 2)), 5, owners)
    for segment in SEGMENTS:
        port = 1 + owners[names.container_of(segment, 5)]
        assert placement.store_of(segment) == ("h", port)
        assert placement.address_for(segment, "dialled") == ("dialled", port)


def test_a_placement_needs_stores_and_containers() -> None:
    with pytest.raises(ValueError, match="at least one"):
        StaticPlacement((), 4)
    with pytest.raises(ValueError, match="at least one"):
        StaticPlacement((("h", 1),), 0)


def test_a_map_is_gone_by_until_the_next() -> None:
    placement = MapPlacement(4)
    with pytest.raises(StoreUnavailableError, match="no segment store has container"):
        placement.store_of(SEGMENTS[0])
    one, two = Host("10.0.0.1", 1), Host("10.0.0.2", 2)
    for containers in (
        {one: frozenset({0, 1}), two: frozenset({2, 3})},
        {one: frozenset(range(4)), two: frozenset()},
    ):
        placement.update(containers)
        for segment in SEGMENTS:
            owner = one if names.container_of(segment, 4) in containers[one] else two
            assert placement.store_of(segment) == owner.address
            assert placement.address_for(segment, "dialled") == owner.address
    placement.update({one: frozenset({0, 1})})
    missing = next(each for each in SEGMENTS if names.container_of(each, 4) == 3)
    with pytest.raises(StoreUnavailableError, match="container 3"):
        placement.address_for(missing, "dialled")


def test_a_host_that_means_something_on_one_machine_is_the_one_that_was_dialled() -> None:
    placement = MapPlacement(1)
    placement.update({Host("127.0.0.1", 12345): frozenset({0})})
    assert placement.store_of("s/a/0.#epoch.0") == ("127.0.0.1", 12345)
    assert placement.address_for("s/a/0.#epoch.0", "db7") == ("db7", 12345)
