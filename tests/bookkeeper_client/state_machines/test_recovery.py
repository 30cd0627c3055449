"""A ledger's recovery, step by step; tests/sim runs it among failures."""

from __future__ import annotations

import pytest

from bookkeeper_client.errors import (
    BookKeeperError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnreadableEntryError,
)
from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.state_machines.effects import (
    Closed,
    Effect,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    SendRead,
    StoreMetadata,
)
from bookkeeper_client.state_machines.recovery import LedgerRecovery, check_password
from bookkeeper_client.wire.protocol import LAST_ENTRY, Code

from ..conftest import BOOKIES, ENTRIES, OPEN


def entry(entry_id: int, last_confirmed: int) -> bytes:
    """Encode one entry of a ledger whose entries have ten bytes."""
    pieces = ENTRIES.encode(
        entry_id,
        last_confirmed=last_confirmed,
        length=10 * (entry_id + 1),
        payload=(b"%010d" % entry_id,),
    )
    return b"".join(pieces)


def take(recovery: LedgerRecovery) -> list[Effect]:
    effects = list(recovery.effects)
    recovery.effects.clear()
    return effects


def reads(entry_id: int) -> list[Effect]:
    return [SendRead(BOOKIES[(max(entry_id, 0) + i) % 3], entry_id, True) for i in range(3)]


def begin(metadata: LedgerMetadata = OPEN) -> LedgerRecovery:
    """Begin a recovery that has marked the ledger and sent its fences."""
    recovery = LedgerRecovery(metadata, 4, ENTRIES)
    assert take(recovery) == [StoreMetadata(metadata.begin_recovery(), 4)]
    recovery.on_stored(5)
    assert take(recovery) == reads(LAST_ENTRY)
    return recovery


def taken_error(recovery: LedgerRecovery) -> Exception:
    (failed,) = take(recovery)
    assert isinstance(failed, Failed)
    return failed.error


def test_a_closed_ledger_is_left_alone() -> None:
    recovery = LedgerRecovery(OPEN.close(4, 50), 9, ENTRIES)
    assert take(recovery) == [Closed(OPEN.close(4, 50))]


def test_an_empty_ledger_is_closed() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("b", LAST_ENTRY, Code.NO_LEDGER)
    assert take(recovery) == reads(0)
    recovery.on_read("a", 0, Code.NO_ENTRY)
    recovery.on_read("b", 0, Code.NO_ENTRY)
    closed = OPEN.begin_recovery().close(-1, 0)
    assert take(recovery) == [StoreMetadata(closed, 5)]
    recovery.on_stored(6)
    assert take(recovery) == [Closed(closed)]


def test_what_may_have_been_confirmed_is_written_again() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.OK, entry(4, 2))
    recovery.on_read("c", LAST_ENTRY, Code.OK, entry(3, 2))
    assert take(recovery) == reads(3)
    recovery.on_read("b", 3, Code.NO_ENTRY)
    recovery.on_read("c", 3, Code.OK, entry(3, 2))
    adds = take(recovery)
    assert [each.bookie for each in adds if isinstance(each, SendAdd)] == ["a", "b", "c"]
    assert all(isinstance(each, SendAdd) and each.is_recovery for each in adds)
    recovery.on_added("a", 3, Code.OK)
    recovery.on_added("b", 3, Code.OK)
    assert take(recovery) == reads(4)
    recovery.on_read("a", 4, Code.OK, entry(4, 2))
    written = take(recovery)[0]
    assert isinstance(written, SendAdd)
    assert ENTRIES.decode(b"".join(written.entry), 4).last_confirmed == 2
    recovery.on_added("a", 4, Code.OK)
    recovery.on_added("c", 4, Code.OK)
    take(recovery)
    recovery.on_read("b", 5, Code.NO_ENTRY)
    recovery.on_read("c", 5, Code.NO_ENTRY)
    assert take(recovery) == [StoreMetadata(OPEN.begin_recovery().close(4, 50), 5)]


@pytest.mark.parametrize("answer", [(None, b""), (Code.IO_ERROR, b""), (Code.OK, b"damaged")])
def test_a_bookie_that_says_nothing_proves_nothing(answer: tuple[Code | None, bytes]) -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("b", LAST_ENTRY, Code.NO_ENTRY)
    take(recovery)
    recovery.on_read("a", 0, Code.NO_ENTRY)
    recovery.on_read("b", 0, *answer)
    assert take(recovery) == []
    recovery.on_read("c", 0, *answer)
    assert isinstance(taken_error(recovery), UnreadableEntryError)


def test_too_few_fenced_bookies_end_the_recovery() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.OK, entry(0, -1))
    recovery.on_read("b", LAST_ENTRY, None)
    assert take(recovery) == []
    recovery.on_read("c", LAST_ENTRY, Code.IO_ERROR)
    assert isinstance(taken_error(recovery), NotEnoughBookiesError)


def test_another_password_ends_the_recovery() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.UNAUTHORIZED)
    assert isinstance(taken_error(recovery), UnauthorizedError)
    with pytest.raises(UnauthorizedError):
        check_password(OPEN, b"another")


def test_a_bookie_that_lost_its_place_is_still_asked_for_later_entries() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("c", LAST_ENTRY, Code.NO_ENTRY)
    take(recovery)
    recovery.on_read("b", 0, Code.OK, entry(0, -1))
    take(recovery)
    recovery.on_added("b", 0, None)
    assert take(recovery) == []
    recovery.on_added("c", 0, None)
    assert take(recovery) == [FindBookies()]
    recovery.on_bookies_found(["a", "d", "e"])
    assert [each.bookie for each in take(recovery) if isinstance(each, SendAdd)] == ["d", "e"]
    recovery.on_added("d", 0, Code.OK)
    recovery.on_added("e", 0, Code.OK)
    assert take(recovery) == reads(1)
    recovery.on_read("a", 1, Code.NO_ENTRY)
    recovery.on_read("c", 1, Code.NO_ENTRY)
    closed = OPEN.begin_recovery().change_bookies(0, ("a", "d", "e")).close(0, 10)
    assert take(recovery) == [StoreMetadata(closed, 5)]


def test_without_a_quorum_to_write_to_the_recovery_ends() -> None:
    recovery = begin()
    recovery.on_read("a", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("b", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("c", 0, Code.OK, entry(0, -1))
    recovery.on_added("a", 0, None)
    recovery.on_added("b", 0, None)
    take(recovery)
    recovery.on_bookies_found(["a", "b", "c"])
    assert isinstance(taken_error(recovery), NotEnoughBookiesError)


def test_the_end_that_another_recovery_stored_holds() -> None:
    recovery = begin()
    for entry_id in (LAST_ENTRY, 0):
        recovery.on_read("a", entry_id, Code.NO_ENTRY)
        recovery.on_read("b", entry_id, Code.NO_ENTRY)
    take(recovery)
    recovery.on_store_doubtful()
    assert take(recovery) == [FetchMetadata()]
    theirs = OPEN.close(0, 10)
    recovery.on_fetched(theirs, 7)
    assert take(recovery) == [Closed(theirs)]


def test_a_recovery_whose_metadata_were_changed_begins_again() -> None:
    recovery = LedgerRecovery(OPEN, 4, ENTRIES)
    take(recovery)
    recovery.on_store_doubtful()
    take(recovery)
    changed = OPEN.change_bookies(3, ("a", "d", "c"))
    recovery.on_fetched(changed, 5)
    assert take(recovery) == [StoreMetadata(changed.begin_recovery(), 5)]


def test_the_length_is_read_where_no_entry_behind_the_last_tells_it() -> None:
    recovery = begin(OPEN.change_bookies(3, BOOKIES))
    recovery.on_read("a", LAST_ENTRY, Code.NO_ENTRY)
    recovery.on_read("b", LAST_ENTRY, Code.NO_ENTRY)
    take(recovery)
    recovery.on_read("a", 3, Code.NO_ENTRY)
    recovery.on_read("b", 3, Code.NO_ENTRY)
    assert take(recovery) == reads(2)
    recovery.on_read("b", 2, Code.OK, entry(2, 1))
    (store,) = take(recovery)
    assert isinstance(store, StoreMetadata)
    assert (store.metadata.last_entry_id, store.metadata.length) == (2, 30)
    assert recovery.is_length_certain


def test_a_ledger_that_is_gone_cannot_be_recovered() -> None:
    recovery = LedgerRecovery(OPEN, 4, ENTRIES)
    take(recovery)
    recovery.on_store_doubtful()
    take(recovery)
    recovery.on_fetched(None, 0)
    assert isinstance(taken_error(recovery), BookKeeperError)
