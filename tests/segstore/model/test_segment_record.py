"""Records of inactive segments are read back as they were written, or not at all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.errors import DataLogCorruptError
from segstore.model.attributes import core_attribute
from segstore.model.metadata import SegmentMetadata
from segstore.model.operations import ActivateOperation, EvictOperation, decode_operation
from segstore.model.segment_record import (
    RECORD_BYTES_MAX,
    RecordDamagedError,
    SegmentRecord,
    decode_record,
    encode_record,
    record_end,
    record_key,
)

NUMBERS = st.integers(0, 2**63 - 1)
RECORDS = st.builds(
    SegmentRecord,
    NUMBERS,
    st.text(st.characters(codec="utf-8"), max_size=80),
    NUMBERS,
    NUMBERS,
    st.booleans(),
    NUMBERS,
    st.dictionaries(st.integers(0, 2**32), st.integers(-(2**63), 2**63 - 1), max_size=12),
)


@given(RECORDS, st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_reads_back_as_it_was_written(
    record: SegmentRecord, before: bytes, after: bytes
) -> None:
    data = encode_record(record)
    assert len(data) <= RECORD_BYTES_MAX
    around = before + data + after
    end = len(before) + len(data)
    assert record_end(around, len(before)) == end
    assert decode_record(around, len(before)) == (record, end)


@given(RECORDS, st.data())
def test_a_cut_or_changed_record_is_damage(record: SegmentRecord, draw: st.DataObject) -> None:
    data = encode_record(record)
    cut = data[: draw.draw(st.integers(0, len(data) - 1))]
    with pytest.raises(RecordDamagedError):
        decode_record(cut, 0)
    changed = bytearray(data)
    changed[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(RecordDamagedError):
        decode_record(changed, 0)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_record_or_damage(data: bytes) -> None:
    with contextlib.suppress(RecordDamagedError):
        decode_record(data, 0)


@given(st.lists(RECORDS, max_size=5), NUMBERS)
def test_an_eviction_reads_back_with_the_places_of_its_records(
    records: list[SegmentRecord], offset: int
) -> None:
    operation = EvictOperation("s", range(len(records)), list)
    operation.set_records(records)
    operation.segment_id, operation.offset, operation.sequence_number = 7, offset, 9
    again = decode_operation(b"".join(operation.encode()))
    assert isinstance(again, EvictOperation)
    assert (again.segment_id, again.offset, again.sequence_number) == (7, offset, 9)
    assert again.data == operation.data
    assert again.records == operation.records
    assert [record for record, _, _ in again.records] == records


@given(RECORDS, NUMBERS)
def test_an_activation_reads_back(record: SegmentRecord, offset: int) -> None:
    length = len(encode_record(record))
    operation = ActivateOperation(record, offset=offset, record_bytes=length)
    operation.segment_id, operation.sequence_number = 7, 9
    again = decode_operation(b"".join(operation.encode()))
    assert isinstance(again, ActivateOperation)
    assert (again.segment_id, again.offset, again.record) == (7, offset, record)
    assert (again.record_bytes, again.name) == (length, record.name)


def test_an_operation_with_a_damaged_record_is_damaged() -> None:
    record = SegmentRecord(1, "s", 0, 0, False, 0, {})
    operation = EvictOperation("s", (1,), list)
    operation.set_records([record])
    operation.segment_id, operation.offset, operation.sequence_number = 7, 0, 9
    data = bytearray(b"".join(operation.encode()))
    data[-1] ^= 1
    with pytest.raises(DataLogCorruptError):
        decode_operation(data)


def test_a_segment_is_what_its_record_says() -> None:
    segment = SegmentMetadata(5, "scope/stream/0.#epoch.0")
    segment.length = segment.storage_length = 100
    segment.start_offset = 30
    segment.sealed = True
    segment.last_modified_ms = 1234
    values = {core_attribute(0): 1, core_attribute(9): 2, core_attribute(1 << 20): -5}
    segment.attribute_memory.start_with(values, 1)
    again = SegmentMetadata.from_record(segment.record, 77)
    assert again.record == segment.record
    assert again.attributes == values
    assert again.storage_length == 100
    assert again.record_bytes == 77
    assert not again.attribute_memory.dirty


def test_names_have_keys_of_their_own_also_those_that_no_utf_8_has() -> None:
    names = ["a", "b", "", "ä", "\ud800"]
    assert len({record_key(name) for name in names}) == len(names)
    assert {len(record_key(name)) for name in names} == {32}
