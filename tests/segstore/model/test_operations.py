"""Operations survive the log byte for byte."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.log.data_frame import DataFrame
from segstore.errors import DataLogCorruptError
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import (
    AppendOperation,
    CheckpointOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    decode_attributes,
    decode_operation,
    encode_attributes,
)

I64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(0, 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16) | st.binary(min_size=1, max_size=256)
VALUES = st.dictionaries(IDS, I64, max_size=6)


def encoded(operation: Operation) -> bytes:
    head, body = operation.encode()
    return head + bytes(body)


def state(operation: Operation) -> dict[str, object]:
    """Return what must survive: everything but callbacks and the fields that only the queue
    needs."""
    names = {"segment_id", "sequence_number"}
    if isinstance(operation, AppendOperation):
        names |= {"data", "length", "offset", "attribute_values"}
    elif isinstance(operation, MapOperation):
        names.add("name")
    names |= {name for kind in type(operation).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(operation, name) for name in names - {"updates", "source_name"}}


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    kind = draw(st.integers(0, 7))
    operation: Operation
    if kind == 0:
        repeated = draw(st.sampled_from([1, 1, 20]))
        operation = AppendOperation("s", draw(st.binary(max_size=300)) * repeated)
        operation.offset = draw(NUMBERS)
        operation.attribute_values = draw(VALUES)
    elif kind == 1:
        operation = SealOperation("s")
        operation.length = draw(NUMBERS)
    elif kind == 2:
        operation = MergeOperation("s", "t")
        operation.source_id, operation.offset = draw(NUMBERS), draw(NUMBERS)
        operation.length, operation.attribute_values = draw(NUMBERS), draw(VALUES)
    elif kind == 3:
        name = draw(st.text(st.characters(codec="utf-8"), max_size=60))
        operation = MapOperation(name, draw(VALUES), created_ms=draw(NUMBERS))
    elif kind == 4:
        operation = UpdateAttributesOperation("s", ())
        operation.attribute_values = draw(VALUES)
    elif kind == 5:
        operation = TruncateOperation("s", draw(NUMBERS))
    elif kind == 6:
        operation = CheckpointOperation()
        operation.snapshot = draw(st.binary(max_size=300))
    else:
        operation = DeleteOperation("s")
    operation.sequence_number = draw(NUMBERS)
    if kind != 6:
        operation.segment_id = draw(NUMBERS)
    return operation


@given(operations())
def test_an_operation_reads_back_as_it_was_written(operation: Operation) -> None:
    again = decode_operation(encoded(operation))
    assert type(again) is type(operation)
    assert state(again) == state(operation)
    assert encoded(again) == encoded(operation)


@given(operations(), st.integers(0, 400))
def test_an_operation_in_a_frame_has_the_same_bytes(operation: Operation, before: int) -> None:
    frame = DataFrame(8192)
    frame.put_whole(b"", bytes(before) or b"x")
    whole = encoded(operation)
    fits = len(whole) <= frame.room
    length = frame.length
    assert operation.put_into(frame) is fits
    assert frame.record_count == 1 + fits
    assert bytes(frame.seal()[length + 5 :]) == (whole if fits else b"")


def test_an_append_that_just_fits_and_one_that_does_not() -> None:
    for room, fits in ((31 + 100, True), (31 + 99, False)):
        frame = DataFrame(8192)
        frame.put_whole(bytes(frame.room - 5 - room), b"")
        assert frame.room == room
        assert AppendOperation("s", bytes(100)).put_into(frame) is fits


@pytest.mark.parametrize("data", [b"x" * 5000, bytearray(b"x" * 5000), memoryview(b"x" * 5000)])
def test_long_data_is_read_back_without_a_copy(data: bytes | bytearray | memoryview) -> None:
    operation = AppendOperation("s", data)
    operation.attribute_values = {b"k" * 256: -1, b"k": 2**63 - 1}
    record = encoded(operation)
    again = decode_operation(record)
    assert isinstance(again, AppendOperation)
    assert isinstance(again.data, memoryview)
    assert again.data.obj is record
    assert again.data == data
    assert again.attribute_values == operation.attribute_values


@pytest.mark.parametrize("attribute_id", [b"", b"x" * 257])
def test_an_attribute_id_without_a_place_in_the_format_is_refused(attribute_id: bytes) -> None:
    with pytest.raises(ValueError, match="an attribute id of"):
        encode_attributes({attribute_id: 1})


@given(VALUES)
def test_attributes_read_back_with_the_position_after_them(values: dict[bytes, int]) -> None:
    data = b"xy" + encode_attributes(values) + b"z"
    assert decode_attributes(data, 2, len(values)) == (values, len(data) - 1)


@given(operations(), st.data())
def test_a_cut_operation_is_damage_or_a_shorter_payload(
    operation: Operation, data: st.DataObject
) -> None:
    whole = encoded(operation)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if isinstance(operation, CheckpointOperation) and len(cut) >= 9:
        return  # a snapshot checks itself
    if isinstance(operation, MapOperation | MergeOperation | UpdateAttributesOperation):
        # A cut attribute id may still unpack; lengths are the data frame's business.
        with contextlib.suppress(DataLogCorruptError):
            decode_operation(cut)
        return
    with pytest.raises(DataLogCorruptError):
        decode_operation(cut)


@given(st.binary(max_size=64))
def test_garbage_is_an_operation_or_damage(data: bytes) -> None:
    with contextlib.suppress(DataLogCorruptError):
        decode_operation(data)


def test_a_number_beyond_64_signed_bits_is_damage() -> None:
    checkpoint = bytes.fromhex("08 f800000000000007") + b"snapshot"
    with pytest.raises(DataLogCorruptError, match="17 bytes is damaged"):
        decode_operation(checkpoint)
    with pytest.raises(DataLogCorruptError):
        decode_attributes(b"", 0, 2**63)


def test_a_snapshot_with_a_name_that_is_no_text_is_damage() -> None:
    metadata = ContainerMetadata(7)
    created = MapOperation("name", {})
    created.segment_id, created.sequence_number = 1, 1
    metadata.apply(created, 0)
    snapshot = metadata.snapshot(1)
    with pytest.raises(DataLogCorruptError, match="snapshot is damaged"):
        ContainerMetadata(7).restore(snapshot.replace(b"name", b"n\xffme"))
