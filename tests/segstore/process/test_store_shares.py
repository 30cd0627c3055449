"""Containers are shared among stores of one machine: whole journals, evenly, with few moves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from segstore.ownership.data_directory import DataDirectory, StoreState
from segstore.process.store_shares import Shares, plan_shares

COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def one_journal(container_count: int) -> DataDirectory:
    return DataDirectory(Path("data"), container_count, 1, "0" * 32, StoreState.NEW)


def share_out(directory: DataDirectory, store_count: int) -> tuple[DataDirectory, Shares]:
    """Return the shares, and the directory after a start with this many stores."""
    shares = plan_shares(directory, store_count)
    if shares.journal_count == directory.journal_count:
        assert shares.journals == directory.journals_of_containers()
        return directory, shares
    journals = shares.journals
    return directory.with_journals(journals, shares.journal_count, stores=shares.stores), shares


@given(st.integers(1, 24), COUNTS)
def test_every_container_has_one_store_and_shares_are_even(
    container_count: int, store_counts: list[int]
) -> None:
    directory = one_journal(container_count)
    for wanted in store_counts:
        store_count = min(wanted, container_count)
        before, (directory, shares) = directory, share_out(directory, store_count)
        given_out = [each for mine in shares.containers for each in mine]
        assert sorted(given_out) == list(range(container_count))
        sizes = [len(mine) for mine in shares.containers]
        assert len(sizes) == store_count
        assert max(sizes) - min(sizes) <= 1
        owners = {(journal, shares.stores[each]) for each, journal in enumerate(shares.journals)}
        assert len(owners) == len(set(shares.journals)), "one process at a time writes a journal"
        for container, after in enumerate(shares.journals):
            is_new = before.journal_count <= after < shares.journal_count
            assert after == before.journal_of(container) or is_new
        assert shares.journal_count - before.journal_count <= store_count
        assert plan_shares(directory, store_count) == shares, "the next start moves nothing"


@given(COUNTS)
def test_nothing_moves_to_one_store(store_counts: list[int]) -> None:
    directory = one_journal(12)
    for store_count in store_counts:
        directory, _ = share_out(directory, store_count)
        after, one = share_out(directory, 1)
        assert after is directory
        assert one.containers == (tuple(range(12)),)


def test_a_second_store_takes_half_and_gives_it_back_without_a_move() -> None:
    directory, shares = share_out(one_journal(4), 2)
    assert shares.containers == ((0, 1), (2, 3))
    assert shares.stores == (0, 0, 1, 1)
    assert (directory.journals, directory.journal_count) == ((0, 0, 1, 1), 2)
    three, _ = share_out(directory, 3)
    assert sorted(Counter(three.journals).values()) == [1, 1, 2]
    after, again = share_out(three, 2)
    assert after is three
    assert sorted(map(len, again.containers)) == [2, 2]
