"""The queue of committed operations that tier 2 lacks."""

from __future__ import annotations

from segstore.durable_log.memory_log import AppendedRange, MemoryLog
from segstore.model.operations import (
    AppendOperation,
    DeleteOperation,
    Operation,
    SealOperation,
    TruncateOperation,
)


def numbered(operation: Operation, sequence_number: int, *, segment_id: int = 1) -> Operation:
    operation.segment_id, operation.sequence_number = segment_id, sequence_number
    return operation


def append(
    offset: int, data: bytes, sequence_number: int, *, segment_id: int = 1
) -> AppendOperation:
    operation = AppendOperation("s", data)
    operation.offset = offset
    operation.segment_id, operation.sequence_number = segment_id, sequence_number
    return operation


def ranges(log: MemoryLog) -> list[tuple[int, int, int, int]]:
    return [
        (each.segment_id, each.offset, each.end, each.first_sequence_number)
        for each in log.operations()
        if isinstance(each, AppendedRange)
    ]


def test_only_operations_that_change_tier_2_are_queued() -> None:
    log = MemoryLog()
    log.add(append(0, b"", 1))
    log.add(numbered(SealOperation("s"), 2))
    assert log.first_sequence_number() is None
    truncation = numbered(TruncateOperation("s", 0), 3)
    log.add(truncation)
    assert list(log.operations()) == [truncation]


def test_appends_that_follow_each_other_take_one_entry() -> None:
    log = MemoryLog()
    for number in range(100):
        log.add(append(10 * number, bytes(10), 5 + number))
    assert ranges(log) == [(1, 0, 1000, 5)]
    log.add(append(0, bytes(3), 105, segment_id=2))
    log.add(append(1000, bytes(10), 106))
    assert ranges(log) == [(1, 0, 1000, 5), (2, 0, 3, 105), (1, 1000, 1010, 106)]
    assert log.first_sequence_number() == 5


def test_appends_that_follow_each_other_are_one_range() -> None:
    log = MemoryLog()
    for number in range(1000):
        operation = AppendOperation("s", bytes(1000))
        operation.segment_id, operation.offset = 1, 1000 * number
        operation.sequence_number = 7 + number
        log.add(operation)
    [entry] = log.remove_all()
    assert isinstance(entry, AppendedRange)
    assert (entry.offset, entry.end, entry.first_sequence_number) == (0, 1_000_000, 7)


def test_operations_are_taken_in_the_order_of_the_log() -> None:
    log = MemoryLog()
    kinds: list[Operation] = []
    for number in range(6):
        operation: Operation
        if number % 3 == 0:
            operation = TruncateOperation("s", number)
        elif number % 3 == 1:
            operation = AppendOperation("s", b"xx")
            operation.offset = 2 * number
        else:
            operation = DeleteOperation("s")
        operation.segment_id, operation.sequence_number = 1, 10 + number
        kinds.append(operation)
        log.add(operation)
    assert log.first_sequence_number() == 10
    taken = log.remove_all()
    numbers = [
        each.first_sequence_number if isinstance(each, AppendedRange) else each.sequence_number
        for each in taken
    ]
    assert numbers == [10, 11, 12, 13, 14, 15]
    assert log.first_sequence_number() is None
