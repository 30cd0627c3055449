"""A segment's attributes in memory: those that it keeps, and those that it shares with others."""

from __future__ import annotations

from segstore.model import segment_attributes
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    CREATION_TIME,
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    core_attribute,
)
from segstore.model.operations import AttributeValues, decode_attributes, encode_attributes
from segstore.model.segment_attributes import SegmentAttributes

WRITER = bytes([1]) * 16
SHORT = b"\x80"


def started(values: AttributeValues) -> SegmentAttributes:
    """Return a segment's attributes that start with these values."""
    attributes = SegmentAttributes()
    attributes.start_with(values, 7)
    return attributes


def test_segments_with_the_same_core_attributes_share_the_set_of_their_ids() -> None:
    first = started({CREATION_TIME: 1, EVENT_COUNT: 2})
    second = started({EVENT_COUNT: 3, CREATION_TIME: 4})
    assert first.core is second.core
    assert first.core == {CREATION_TIME, EVENT_COUNT}
    assert (first.dirty, second.checkpointed()) == ({}, {EVENT_COUNT: 3, CREATION_TIME: 4})
    third = started({CREATION_TIME: 1, WRITER: 2, SHORT: 3})
    assert third.core == {CREATION_TIME}
    assert third.dirty == {WRITER: 7, SHORT: 7}
    assert third.checkpointed() == {CREATION_TIME: 1, WRITER: 2, SHORT: 3}


def test_a_core_attribute_of_one_segment_is_not_another_ones() -> None:
    first, second = started({CREATION_TIME: 1}), started({CREATION_TIME: 2})
    first.pin({ATTRIBUTE_SEGMENT_ROOT_POINTER: 5})
    first.apply({SCALE_POLICY_RATE: 6}, 8)
    assert first.unpersisted() == []
    assert first.core == {CREATION_TIME, ATTRIBUTE_SEGMENT_ROOT_POINTER, SCALE_POLICY_RATE}
    assert (second.core, second.checkpointed()) == ({CREATION_TIME}, {CREATION_TIME: 2})


def test_a_checkpoint_has_core_and_dirty_attributes_and_no_clean_ones() -> None:
    attributes = started({CREATION_TIME: 1})
    attributes.load([(WRITER, 2)])
    assert attributes.checkpointed() == {CREATION_TIME: 1}
    attributes.apply({EVENT_COUNT: 3}, 8)
    assert attributes.checkpointed() == {CREATION_TIME: 1, EVENT_COUNT: 3}
    assert attributes.persisted(8) == []
    assert attributes.checkpointed() == {CREATION_TIME: 1, EVENT_COUNT: 3}


def test_what_clients_make_up_does_not_fill_memory_with_shared_sets() -> None:
    for number in range(2 * segment_attributes.SHARED_SETS_MAX):
        odd = {core_attribute(1000 + number): 1}
        assert started(odd).core == odd.keys()
    many = {core_attribute(number): number for number in range(100)}
    assert started(many).core == many.keys()
    assert len(segment_attributes._shared_sets) <= segment_attributes.SHARED_SETS_MAX


def test_the_ids_of_usual_core_attributes_are_one_object() -> None:
    values = {CREATION_TIME: 1, core_attribute(15): 2, core_attribute(16): 3, WRITER: 4}
    data = encode_attributes(values)
    first, _ = decode_attributes(data, 0, len(values))
    second, _ = decode_attributes(data, 0, len(values))
    assert first == second == values
    shared = [a is b for a, b in zip(first, second, strict=True)]
    assert shared == [True, True, False, False]
