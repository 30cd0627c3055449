"""The segments that streams need of the store, by the records of the controller."""

from __future__ import annotations

from msgspec import structs

from pravega_admin.inspection.recovered_streams import read_streams
from pravega_controller.metadata.records import (
    Create,
    EpochRecord,
    HeadRecord,
    NameRecord,
    Scale,
    ScopeRecord,
    StreamRecord,
    StreamWorkflow,
    decode,
    encode,
)
from pravega_controller.metadata.scope_records import SCOPES
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.rules.history import first_epoch, scaled_epoch
from pravega_controller.rules.transactions import TransactionState
from pravega_wire import names
from segstore.repair.salvage import RequiredSegment

FIRST = first_epoch([(0.0, 0.5), (0.5, 1.0)], first_number=0, created_ms=0)
SPLIT = scaled_epoch(FIRST.created, [0], [(0.0, 0.2), (0.2, 0.5)], number=1, created_ms=0)
SCOPE = ScopeRecord("id", "active")
OBJECTS = "_system/_tables/controller/objects-id"
HISTORIES = "_system/_tables/controller/histories-id"

Tables = dict[str, dict[bytes, bytes]]


def tables_of(
    *,
    head: dict[int, int] | None = None,
    pending: StreamWorkflow | None = None,
    sealed: bool = False,
) -> Tables:
    """Return the tables of one stream, whose first segment was split."""
    record = StreamRecord(
        0, 1, 2, 4, head_revision=int(head is not None), pending=pending, is_sealed=sealed
    )
    histories = {
        b"s/state": encode(record),
        b"s/epoch/0": encode(EpochRecord(FIRST, 0)),
        b"s/epoch/1": encode(EpochRecord(SPLIT, 0)),
    }
    if head is not None:
        histories[b"s/head"] = encode(HeadRecord(1, head))
    return {
        SCOPES: {b"demo": encode(SCOPE)},
        OBJECTS: {b"s/logs": encode(NameRecord("s")), b"g/readers": b"of others"},
        HISTORIES: histories,
    }


def required(tables: Tables) -> dict[int, tuple[int, bool | None]]:
    """Return the head of each segment that is needed, and whether it is sealed."""
    found: list[RequiredSegment] = read_streams(tables).segments
    assert all(each.name.startswith("demo/logs/") for each in found)
    return {
        names.parse_segment_name(each.name).segment_id: (each.head, each.is_sealed)
        for each in found
    }


SECOND, THIRD = (each.segment_id for each in SPLIT.created)


def test_a_stream_needs_all_segments_from_its_first_epoch_on() -> None:
    assert required(tables_of()) == {
        0: (0, True),
        1: (0, False),
        SECOND: (0, False),
        THIRD: (0, False),
    }
    assert {sealed for _, sealed in required(tables_of(sealed=True)).values()} == {True}


def test_what_lies_before_the_head_is_not_needed() -> None:
    head = {SECOND: 70, THIRD: -1, 1: 5}
    assert required(tables_of(head=head)) == {
        1: (5, False),
        SECOND: (70, False),
        THIRD: (0, False),
    }
    assert set(required(tables_of(head={0: 9, 1: 5}))) == {0, 1, SECOND, THIRD}


def test_what_a_workflow_changes_is_not_asked_for() -> None:
    assert {each for _, each in required(tables_of(pending=Scale())).values()} == {None}
    assert required(tables_of(pending=Create())) == {}


def test_a_stream_whose_records_are_not_whole_is_named() -> None:
    tables = tables_of()
    del tables[HISTORIES][b"s/epoch/1"]
    found = read_streams(tables)
    assert (found.segments, found.stream_count) == ([], 0)
    [sentence] = found.unreadable
    assert "stream demo/logs are not whole" in sentence
    tables[SCOPES][b"demo"] = b"{}"
    assert "scope b'demo' cannot be read" in read_streams(tables).unreadable[0]
    assert read_streams({}).unreadable == []


def test_a_stream_can_begin_at_a_later_place() -> None:
    """A reader that begins at the head waited until somebody truncated the stream."""
    for head, cut in ((None, {0: 0, 1: 0}), ({0: 9, 1: -1}, {0: 9, 1: 0})):
        tables = tables_of(head=head)
        [found] = read_streams(tables).heads
        named = {names.segment_name("demo", "logs", number): number for number in cut}
        assert (found.called, found.table) == ("demo/logs", HISTORIES)
        assert {named[name]: offset for name, offset in found.offsets.items()} == cut
        tables[HISTORIES] |= found.move({names.segment_name("demo", "logs", 0): 70})
        record = decode(tables[HISTORIES][b"s/state"], StreamRecord)
        moved = decode(tables[HISTORIES][b"s/head"], HeadRecord)
        assert moved.revision == record.head_revision == (2 if head else 1)
        assert moved.cut == {**(head or cut), 0: 70}
        assert required(tables)[0] == (70, True)


def test_an_internal_stream_begins_where_its_segments_do() -> None:
    tables = tables_of()
    tables[OBJECTS] = {b"s/_RGreaders": tables[OBJECTS][b"s/logs"]}
    found = read_streams(tables)
    assert (found.stream_count, found.heads) == (1, [])


def test_open_transactions_are_listed_with_their_segments() -> None:
    tables = tables_of()
    identifier = (1 << 96).to_bytes(16, "big")
    open_one = TransactionRecord(
        TransactionState.OPEN, 0, 1, 1, stream_id="s", segment_ranges=((1, 4),)
    )
    ended = TransactionRecord(TransactionState.ABORTED, 0, 1, 1, stream_id="s")
    prefix = "t/demo/logs/"
    tables["_system/_tables/controller/transactions-3"] = {
        f"{prefix}{identifier.hex()}".encode(): encode(open_one),
        f"{prefix}{bytes(16).hex()}".encode(): encode(ended),
        f"{prefix}{bytes([7] * 16).hex()}".encode(): encode(
            structs.replace(open_one, state=TransactionState.COMMITTING)
        ),
        b"c/demo/logs/s": b"of others",
    }
    streams = read_streams(tables)
    [found], [commit] = streams.transactions, streams.commits
    assert bytes([7] * 16).hex() in commit.called
    assert len(commit.segments) == 3
    assert identifier.hex() in found.called
    numbers = [names.parse_segment_name(each).segment_number for each in found.segments]
    assert numbers == [1, 2, 3]
    assert tables[found.table][found.key] == encode(open_one)
    aborting = decode(found.aborting, TransactionRecord)
    assert aborting == structs.replace(open_one, state=TransactionState.ABORTING)
