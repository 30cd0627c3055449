from __future__ import annotations

from itertools import permutations

import pytest

from bookkeeper_client.state_machines.racks import Racks

NAMES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "10.0.0.3": "c"}


@pytest.mark.parametrize("bookies", list(permutations(["a1", "a2", "b1", "b2", "10.0.0.3:3181"])))
def test_the_first_bookies_are_in_as_many_racks_as_possible(bookies: tuple[str, ...]) -> None:
    racks = Racks(NAMES)
    ordered = racks.spread(bookies)
    assert sorted(ordered) == sorted(bookies)
    for count in range(1, 4):
        assert len({racks.of(each) for each in ordered[:count]}) == count
    # What chance has put first is first.
    assert ordered[0] == bookies[0]


def test_a_bookie_beside_others_is_of_another_rack() -> None:
    racks = Racks(NAMES)
    assert racks.spread(["a1", "b1", "a2", "b2"], ["a1"]) == ["b1", "a2", "b2", "a1"]
    assert racks.spread(["a1", "a2", "x"], ["a1", "b1"])[0] == "x"


def test_the_rack_of_a_bookie_that_is_replaced_is_free() -> None:
    ordered = Racks(NAMES).spread(["a1", "b2", "a2", "b1"], ["b1"], ["a1"])
    assert ordered == ["a2", "b2", "a1", "b1"]


def test_bookies_of_one_rack_and_of_none_are_taken_all_the_same() -> None:
    assert Racks(NAMES).spread(["a2", "a1"]) == ["a2", "a1"]
    assert Racks(NAMES).spread(["y", "x"]) == ["y", "x"]
    assert Racks().spread(["b", "a", "c"], ["b"]) == ["b", "a", "c"]
