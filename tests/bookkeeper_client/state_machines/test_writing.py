"""A ledger's writer, step by step; tests/sim runs it among failures."""

from __future__ import annotations

import pytest

from bookkeeper_client.errors import ClosedError, FencedError
from bookkeeper_client.metadata import LedgerMetadata, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines.effects import (
    Closed,
    Confirmed,
    Effect,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    StoreMetadata,
)
from bookkeeper_client.state_machines.writing import LedgerWriter
from bookkeeper_client.wire.protocol import Code

from ..conftest import BOOKIES, ENTRIES, OPEN


def take(writer: LedgerWriter) -> list[Effect]:
    effects = list(writer.effects)
    writer.effects.clear()
    return effects


def targets(effects: list[Effect]) -> list[tuple[str, int]]:
    assert all(isinstance(effect, SendAdd) for effect in effects)
    return [(effect.bookie, effect.entry_id) for effect in effects if isinstance(effect, SendAdd)]


@pytest.fixture
def writer() -> LedgerWriter:
    return LedgerWriter(OPEN, 4, ENTRIES)


def test_an_entry_is_confirmed_by_its_quorum(writer: LedgerWriter) -> None:
    assert writer.add((b"on", b"e")) == 0
    sent = take(writer)
    assert targets(sent) == [("a", 0), ("b", 0), ("c", 0)]
    assert isinstance(sent[0], SendAdd)
    entry = ENTRIES.decode(b"".join(sent[0].entry), 0)
    assert (entry.payload, entry.length, entry.last_confirmed) == (b"one", 3, -1)
    writer.on_added("b", 0, Code.OK)
    writer.on_added("b", 0, Code.OK)
    assert take(writer) == []
    writer.on_added("a", 0, Code.OK)
    assert take(writer) == [Confirmed(0)]
    writer.on_added("c", 0, Code.OK)
    assert take(writer) == []


def test_entries_are_confirmed_in_their_order(writer: LedgerWriter) -> None:
    for payload in (b"one", b"two"):
        writer.add((payload,))
    take(writer)
    for bookie in BOOKIES:
        writer.on_added(bookie, 1, Code.OK)
    assert take(writer) == []
    writer.on_added("a", 0, Code.OK)
    writer.on_added("c", 0, Code.OK)
    assert take(writer) == [Confirmed(1)]


def test_entries_go_to_their_write_set_in_turn() -> None:
    writer = LedgerWriter(
        LedgerMetadata(Quorums(3, 2, 2), State.OPEN, OPEN.segments, None, None, {}), 0, ENTRIES
    )
    for _ in range(3):
        writer.add((b"x",))
    assert targets(take(writer)) == [("a", 0), ("b", 0), ("b", 1), ("c", 1), ("c", 2), ("a", 2)]
    writer.on_added("c", 0, Code.OK)  # not of its write set
    writer.on_added("a", 0, Code.OK)
    assert take(writer) == []


@pytest.mark.parametrize("code", [None, Code.IO_ERROR, Code.READ_ONLY, Code.TOO_MANY_REQUESTS])
def test_three_bookies_go_on_when_one_fails(writer: LedgerWriter, code: Code | None) -> None:
    writer.add((b"one",))
    take(writer)
    writer.on_added("b", 0, code)
    assert take(writer) == [FindBookies()]
    assert writer.lost_bookies == ["b"]
    writer.on_bookies_found(["a", "c"])
    assert writer.wants_bookies
    writer.add((b"two",))
    assert targets(take(writer)) == [("c", 1), ("a", 1)]
    for entry_id in (0, 1):
        for bookie in ("a", "c"):
            writer.on_added(bookie, entry_id, Code.OK)
    assert take(writer) == [Confirmed(0), Confirmed(1)]


def test_a_bookie_that_is_back_gets_what_is_not_confirmed(writer: LedgerWriter) -> None:
    writer.add((b"one",))
    writer.on_added("b", 0, None)
    writer.on_added("a", 0, Code.OK)
    writer.on_added("c", 0, Code.OK)
    writer.add((b"two",))
    take(writer)
    writer.on_bookies_found(["a", "b", "c"])
    assert targets(take(writer)) == [("b", 1)]
    assert not writer.wants_bookies


def test_another_bookie_gets_the_place_and_nothing_is_confirmed_meanwhile(
    writer: LedgerWriter,
) -> None:
    for payload in (b"one", b"two"):
        writer.add((payload,))
    for bookie in ("a", "b"):
        writer.on_added(bookie, 0, Code.OK)
    writer.on_added("b", 1, Code.OK)
    writer.on_added("b", 1, None)
    take(writer)
    writer.on_bookies_found(["d", "a", "b", "c"])
    wanted = OPEN.change_bookies(1, ("a", "d", "c"))
    assert take(writer) == [StoreMetadata(wanted, 4)]
    writer.on_added("a", 1, Code.OK)
    writer.on_added("c", 1, Code.OK)
    assert take(writer) == []
    writer.on_stored(5)
    effects = take(writer)
    assert targets(effects[:1]) == [("d", 1)]
    assert effects[1:] == [Confirmed(1)]


def test_an_answer_of_a_bookie_that_was_replaced_counts_nothing(writer: LedgerWriter) -> None:
    writer.add((b"one",))
    writer.on_added("b", 0, Code.OK)
    writer.on_added("b", 0, None)
    writer.on_bookies_found(["d"])
    writer.on_stored(5)
    take(writer)
    writer.on_added("a", 0, Code.OK)
    writer.on_added("b", 0, Code.OK)
    assert take(writer) == []
    writer.on_added("d", 0, Code.OK)
    assert take(writer) == [Confirmed(0)]


def test_a_lost_reply_of_the_metadata_store_is_found_out(writer: LedgerWriter) -> None:
    writer.add((b"one",))
    writer.on_added("b", 0, None)
    writer.on_bookies_found(["d"])
    wanted = OPEN.change_bookies(0, ("a", "d", "c"))
    take(writer)
    writer.on_store_doubtful()
    assert take(writer) == [FetchMetadata()]
    writer.on_fetched(OPEN, 4)
    assert take(writer) == [StoreMetadata(wanted, 4)]
    writer.on_store_doubtful()
    take(writer)
    writer.on_fetched(wanted, 5)
    assert targets(take(writer)) == [("d", 0)]


@pytest.mark.parametrize(
    "found", [OPEN.begin_recovery(), OPEN.close(3, 9), OPEN.change_bookies(0, ("a", "x", "c"))]
)
def test_a_ledger_that_another_client_has_changed_ends_its_writer(
    writer: LedgerWriter, found: LedgerMetadata
) -> None:
    writer.add((b"one",))
    writer.on_added("b", 0, None)
    writer.on_bookies_found(["d"])
    writer.on_store_doubtful()
    take(writer)
    writer.on_fetched(found, 9)
    (failed,) = take(writer)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, FencedError)


def test_a_fenced_writer_writes_no_metadata(writer: LedgerWriter) -> None:
    writer.add((b"one",))
    take(writer)
    writer.on_added("c", 0, Code.FENCED)
    (failed,) = take(writer)
    assert isinstance(failed, Failed)
    for bookie in ("a", "b"):
        writer.on_added(bookie, 0, Code.OK)
    writer.close()
    assert take(writer) == []
    with pytest.raises(FencedError):
        writer.add((b"two",))


def test_closing_waits_for_what_is_not_confirmed(writer: LedgerWriter) -> None:
    writer.add((b"one",))
    writer.close()
    take(writer)
    with pytest.raises(ClosedError):
        writer.add((b"two",))
    for bookie in ("a", "b"):
        writer.on_added(bookie, 0, Code.OK)
    closed = OPEN.close(0, 3)
    assert take(writer) == [Confirmed(0), StoreMetadata(closed, 4)]
    writer.on_stored(5)
    assert take(writer) == [Closed(closed)]


def test_a_closed_ledger_is_not_closed_again_elsewhere(writer: LedgerWriter) -> None:
    writer.close()
    assert take(writer) == [StoreMetadata(OPEN.close(-1, 0), 4)]
    writer.on_store_doubtful()
    take(writer)
    writer.on_fetched(OPEN.close(-1, 0), 5)
    assert take(writer) == [Closed(OPEN.close(-1, 0))]
