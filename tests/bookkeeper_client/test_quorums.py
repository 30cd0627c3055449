"""Conclusions from a part of an ensemble, against every way to have acknowledged."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from bookkeeper_client.quorums import Quorums

ALL = [
    Quorums(ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def subsets(indices: range) -> list[set[int]]:
    sizes = range(len(indices) + 1)
    return [set(each) for each in chain.from_iterable(combinations(indices, n) for n in sizes)]


def confirming_sets(quorums: Quorums) -> list[set[int]]:
    """Return every set of bookies that may have confirmed some entry."""
    return [
        set(chosen)
        for entry_id in range(quorums.ensemble)
        for chosen in combinations(quorums.write_set(entry_id), quorums.ack)
    ]


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_covered_means_that_no_entry_is_confirmed_past_the_others(quorums: Quorums) -> None:
    for unknown in subsets(range(quorums.ensemble)):
        may_pass = any(each <= unknown for each in confirming_sets(quorums))
        assert quorums.is_covered(unknown) == (not may_pass)


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_absence_is_proved_when_too_few_are_left(quorums: Quorums) -> None:
    for absent in range(quorums.write + 1):
        assert quorums.proves_absence(absent) == (quorums.write - absent < quorums.ack)


def test_write_sets_go_round() -> None:
    assert [Quorums(4, 3, 2).write_set(i) for i in (0, 2, 3, 4)] == [
        (0, 1, 2),
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
    ]


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0)])
def test_quorums_fit_into_each_other(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="quorums"):
        Quorums(*sizes)


def test_on_fewer_bookies_as_many_confirm_an_entry() -> None:
    assert Quorums(3, 3, 2).narrowed(2) == Quorums(2, 2, 2)
    assert Quorums(5, 3, 2).narrowed(4) == Quorums(4, 3, 2)
    assert Quorums(3, 3, 2).narrowed(5) == Quorums(3, 3, 2)
    with pytest.raises(ValueError, match="quorums of 1"):
        Quorums(3, 3, 2).narrowed(1)
