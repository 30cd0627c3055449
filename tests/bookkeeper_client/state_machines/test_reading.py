"""Reads of one entry from its bookies."""

from __future__ import annotations

import pytest

from bookkeeper_client.errors import NoSuchEntryError, UnauthorizedError, UnreadableEntryError
from bookkeeper_client.metadata import LedgerMetadata, Segment, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines.reading import EntryRead
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat
from bookkeeper_client.wire.protocol import Code

ENTRIES = EntryFormat(7, DigestType.CRC32C, b"")
METADATA = LedgerMetadata(
    quorums=Quorums(3, 2, 2),
    state=State.CLOSED,
    segments=(Segment(0, ("a", "b", "c")), Segment(4, ("d", "b", "c"))),
    digest_type=DigestType.CRC32C,
    password=b"",
    custom={},
    last_entry_id=9,
)
SOUND = b"".join(ENTRIES.encode(3, last_confirmed=2, length=4, payload=(b"data",)))


def asked(read: EntryRead) -> list[str]:
    bookies = [effect.bookie for effect in read.effects]
    read.effects.clear()
    return bookies


def test_the_bookies_of_an_entry_are_asked_in_turn() -> None:
    assert asked(EntryRead(METADATA, 2, ENTRIES)) == ["c"]
    assert asked(EntryRead(METADATA, 6, ENTRIES)) == ["d"]


def test_a_bookie_that_is_asked_last_is_asked_all_the_same() -> None:
    read = EntryRead(METADATA, 3, ENTRIES, asked_last={"a"})
    assert asked(read) == ["b"]
    assert read.silent == {"b"}
    read.on_read("b", Code.NO_ENTRY)
    assert asked(read) == ["a"]
    read.on_read("a", Code.OK, SOUND)
    assert read.entry is not None


@pytest.mark.parametrize(
    "answer", [(None, b""), (Code.NO_ENTRY, b""), (Code.IO_ERROR, b""), (Code.OK, SOUND[:-1])]
)
def test_the_next_bookie_is_asked_when_one_cannot_help(answer: tuple[Code | None, bytes]) -> None:
    read = EntryRead(METADATA, 3, ENTRIES)
    assert asked(read) == ["a"]
    read.on_read("a", *answer)
    assert asked(read) == ["b"]
    read.on_read("b", Code.OK, SOUND)
    assert read.entry is not None
    assert read.entry.payload == b"data"


def test_a_slow_bookie_has_company() -> None:
    read = EntryRead(METADATA, 3, ENTRIES)
    read.on_slow()
    assert asked(read) == ["a", "b"]
    read.on_slow()
    read.on_read("b", Code.NO_ENTRY)
    assert not read.has_ended
    read.on_read("a", Code.OK, SOUND)
    assert read.entry is not None


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (Code.NO_ENTRY, Code.NO_LEDGER, NoSuchEntryError),
        (Code.NO_ENTRY, None, UnreadableEntryError),
        (None, Code.NO_ENTRY, UnreadableEntryError),
        (Code.IO_ERROR, Code.NO_ENTRY, UnreadableEntryError),
        (Code.UNAUTHORIZED, Code.NO_ENTRY, UnauthorizedError),
    ],
)
def test_an_entry_is_absent_only_if_all_say_so(
    first: Code | None, second: Code | None, error: type[Exception]
) -> None:
    read = EntryRead(METADATA, 3, ENTRIES)
    read.on_read("a", first)
    read.on_read("b", second)
    assert type(read.error) is error
