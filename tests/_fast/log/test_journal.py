"""The scan of journal batches, against a plain reading of the format."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.crc import crc32c
from _fast.log.journal import END, INCOMPLETE, INVALID, MARK, BatchScan, EntryIndex, read_entries

GENERATION, SALT = 7, 0xABCD1234
ENTRY = 1


@dataclass(frozen=True)
class Record:
    kind: int
    container_id: int
    epoch: int
    position: int
    data: bytes = b""


def encode_batch(number: int, records: list[Record], *, salt: int = SALT) -> bytes:
    """Encode a batch, filled up to the place where the next one starts."""
    body = b""
    for record in records:
        fields = struct.pack(
            "<IIHHQQ",
            len(record.data),
            record.container_id,
            record.kind,
            0,
            record.epoch,
            record.position,
        )
        body += struct.pack("<I", crc32c(fields + record.data, salt)) + fields + record.data
        body += bytes(-len(body) % 8)
    fields = b"SGJB" + struct.pack(
        "<QQQII", GENERATION, number, number - 1, len(body), len(records)
    )
    batch = fields + struct.pack("<I", crc32c(fields, salt)) + body
    return batch + bytes(-len(batch) % 512)


def scan_of(offset: int = 4096) -> BatchScan:
    return BatchScan(generation=GENERATION, salt=SALT, offset=offset)


RECORDS = st.lists(
    st.one_of(
        st.builds(
            lambda container, data: Record(ENTRY, container, 3, 0, data),
            st.integers(0, 3),
            st.binary(max_size=100),
        ),
        st.builds(Record, st.integers(2, 5), st.integers(0, 9), st.just(3), st.integers(0, 2**63)),
    ),
    min_size=1,
    max_size=8,
)


def numbered(batches: list[list[Record]]) -> list[list[Record]]:
    """Give the entries of each container consecutive positions."""
    positions = dict.fromkeys(range(4), 100)
    numbered_batches = []
    for batch in batches:
        records = []
        for record in batch:
            if record.kind == ENTRY:
                position = positions[record.container_id]
                positions[record.container_id] += 1
                record = Record(ENTRY, record.container_id, 3, position, record.data)
            records.append(record)
        numbered_batches.append(records)
    return numbered_batches


@settings(deadline=None)
@given(batches=st.lists(RECORDS, max_size=6).map(numbered), window=st.integers(1, 3000))
def test_every_record_is_found_whatever_the_window(
    batches: list[list[Record]], window: int
) -> None:
    data = b"".join(encode_batch(5 + index, batch) for index, batch in enumerate(batches))
    data += encode_batch(99, [])[:512]
    scan = scan_of()
    wanted, outcome = window, INCOMPLETE
    while outcome == INCOMPLETE:
        start = scan.end_offset - 4096
        outcome = scan.run(data[start : start + wanted])
        wanted = max(window, scan.bytes_wanted)
    assert outcome == (INVALID if batches else MARK)  # the mark's number follows no batch
    assert scan.misplaced is None
    assert scan.end_offset == 4096 + len(data) - 512
    assert scan.next_number == (5 + len(batches) if batches else 0)
    records = [record for batch in batches for record in batch]
    assert scan.controls == [
        (record.kind, record.container_id, record.epoch, record.position)
        for record in records
        if record.kind != ENTRY
    ]
    for container in range(4):
        entries = [r.data for r in records if r.kind == ENTRY and r.container_id == container]
        index = scan.indexes.get(container)
        if index is None:
            assert entries == []
            continue
        assert (index.first_position, index.end_position) == (100, 100 + len(entries))
        assert index.byte_count == sum(map(len, entries))
        assert sum(byte_count for _, byte_count in index.groups) == index.byte_count
        found, more = read_entries(
            data, 4096, index, start=100, end=100 + len(entries), container_id=container, salt=SALT
        )
        assert (found, more) == (entries, 0)


@settings(deadline=None)
@given(RECORDS.map(lambda batch: numbered([batch])[0]), st.data())
def test_no_flipped_bit_passes(batch: list[Record], data: st.DataObject) -> None:
    whole = encode_batch(1, batch)
    used = 40 + struct.unpack_from("<I", whole, 28)[0]
    offset = data.draw(st.integers(0, used - 1))
    damaged = bytearray(whole)
    damaged[offset] ^= 1 << data.draw(st.integers(0, 7))
    scan = scan_of()
    outcome = scan.run(bytes(damaged) + bytes(4096))
    if scan.end_offset > 4096:  # only padding between records is not summed up
        assert scan.controls == [
            (r.kind, r.container_id, r.epoch, r.position) for r in batch if r.kind != ENTRY
        ]
        assert scan.next_number == 2
        ends = []
        start = 40
        for record in batch:
            start += 32 + len(record.data)
            ends.append((start, start + -len(record.data) % 8))
            start = ends[-1][1]
        assert any(first <= offset < last for first, last in ends)
    else:
        assert outcome == INVALID or (outcome == INCOMPLETE and 28 <= offset < 36)


@given(st.binary(max_size=600), st.integers(0, 40))
def test_no_bytes_harm(garbage: bytes, keep: int) -> None:
    prefix = encode_batch(1, [Record(ENTRY, 0, 1, 1, b"data")])[:keep]
    scan = scan_of()
    assert scan.run(prefix + garbage) in (INVALID, INCOMPLETE, MARK)
    assert scan.end_offset == 4096


def resummed(batch: bytes, offset: int, value: int) -> bytes:
    """Change a field of the batch header and make its sum right again."""
    changed = bytearray(batch)
    struct.pack_into("<I", changed, offset, value)
    struct.pack_into("<I", changed, 36, crc32c(changed[:36], SALT))
    return bytes(changed)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 44, 63, 65, 512, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [1, 2, 3, 2**32 - 1])
def test_records_that_do_not_fill_their_batch_do_not_pass(length: int, count: int) -> None:
    batch = encode_batch(1, [Record(2, 0, 1, 1), Record(3, 0, 1, 1)])
    changed = resummed(resummed(batch, 28, length), 32, count) + bytes(2000)
    scan = scan_of()
    assert scan.run(changed) in (INVALID, INCOMPLETE)
    assert scan.end_offset == 4096


def test_a_batch_out_of_number_does_not_pass() -> None:
    entry = [Record(2, 0, 1, 1)]
    for second, expected in [(6, 2), (5, 1), (7, 1)]:
        scan = scan_of()
        data = encode_batch(5, entry) + encode_batch(second, entry)
        scan.run(data)
        assert scan.end_offset == 4096 + 512 * expected


def test_another_salt_or_generation_does_not_pass() -> None:
    batch = encode_batch(1, [Record(2, 0, 1, 1)])
    for scan in (
        BatchScan(generation=GENERATION, salt=SALT + 1, offset=0),
        BatchScan(generation=GENERATION + 1, salt=SALT, offset=0),
    ):
        assert scan.run(batch) == INVALID


def test_an_end_record_ends_the_scan() -> None:
    data = encode_batch(1, [Record(2, 0, 1, 1), Record(6, 0, 0, 9)]) + encode_batch(
        2, [Record(2, 0, 1, 1)]
    )
    scan = scan_of()
    assert scan.run(data) == END
    assert scan.controls[-1] == (6, 0, 0, 9)
    assert scan.end_offset == 4096 + 512


def test_an_entry_out_of_turn_is_told() -> None:
    scan = scan_of()
    scan.run(encode_batch(1, [Record(ENTRY, 4, 1, 10, b"x"), Record(ENTRY, 4, 1, 12, b"x")]))
    assert scan.misplaced == (4096 + 40 + 40, 4, 12, 11)


def test_an_index_tells_where_entries_lie() -> None:
    records = [Record(ENTRY, 1, 1, position, bytes(position)) for position in range(20, 400)]
    scan = scan_of()
    data = encode_batch(1, records)
    scan.run(data)
    index = scan.indexes[1]
    assert len(index) == 380
    offset = 40
    for record in records:
        assert index.offset_of(record.position) == 4096 + offset
        offset += 32 + len(record.data) + -len(record.data) % 8
    for position in (19, 400):
        with pytest.raises(IndexError):
            index.offset_of(position)


def test_entries_are_read_window_by_window() -> None:
    records = [Record(ENTRY, 1, 1, 20 + index, bytes([index]) * index) for index in range(200)]
    data = encode_batch(1, records)
    scan = scan_of(0)
    scan.run(data)
    index = scan.indexes[1]
    position, found, window = 20, [], 100
    while position < 220:
        offset = index.offset_of(position)
        entries, more = read_entries(
            data[offset : offset + window],
            offset,
            index,
            start=position,
            end=220,
            container_id=1,
            salt=SALT,
        )
        assert more >= 0
        found += entries
        position += len(entries)
        window = max(100, more)
    assert found == [record.data for record in records]


@pytest.mark.parametrize(("offset", "container", "found"), [(2 * 72 + 60, 1, 2), (-1, 2, 0)])
def test_a_damaged_entry_is_told(offset: int, container: int, found: int) -> None:
    data = bytearray(encode_batch(1, [Record(ENTRY, 1, 1, 1 + n, bytes(40)) for n in range(5)]))
    scan = scan_of(0)
    scan.run(data)
    if offset >= 0:
        data[40 + offset] ^= 1
    entries, more = read_entries(
        data, 0, scan.indexes[1], start=1, end=6, container_id=container, salt=SALT
    )
    assert (len(entries), more) == (found, -1)


def test_a_position_outside_of_the_index_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        read_entries(b"", 0, EntryIndex(5), start=5, end=6, container_id=0, salt=0)
