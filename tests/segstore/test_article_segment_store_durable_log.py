"""The segment store article: log operations, the durable log and its parts, on both real tiers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing

from segstore.container import Container
from segstore.durable_log.memory_log import AppendedRange, MemoryLog
from segstore.errors import (
    ContainerOfflineError,
    DataLogError,
    SegmentError,
    SegmentExistsError,
    SegmentSealedError,
)
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
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
)
from segstore.testing.local_tiers import MIB, LocalTiers, operations_in, read_all, until
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX

WRITER = bytes(range(16))


# ---- Log operations ------------------------------------------------------------------------------


def facts(operation: Operation) -> tuple[object, ...]:
    """Return the content of an operation, without its sequence number."""
    if isinstance(operation, AppendOperation):
        data, values = bytes(operation.data), dict(operation.attribute_values)
        return ("append", operation.segment_id, operation.offset, data, values)
    if isinstance(operation, SealOperation):
        return ("seal", operation.segment_id, operation.length)
    if isinstance(operation, TruncateOperation):
        return ("truncate", operation.segment_id, operation.offset)
    if isinstance(operation, MergeOperation):
        offset, length = operation.offset, operation.length
        return ("merge", operation.segment_id, operation.source_id, offset, length)
    if isinstance(operation, MapOperation):
        return ("map", operation.segment_id, operation.name)
    if isinstance(operation, UpdateAttributesOperation):
        return ("update", operation.segment_id, dict(operation.attribute_values))
    if isinstance(operation, DeleteOperation):
        return ("delete", operation.segment_id)
    assert isinstance(operation, CheckpointOperation)
    return ("checkpoint",)


Act = Callable[[Container], Awaitable[object]]


def accumulate(count: int) -> list[AttributeUpdate]:
    return [AttributeUpdate(WRITER, AttributeUpdateType.ACCUMULATE, count)]


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        pytest.param(
            lambda c: c.append("s", b"data", attribute_updates=accumulate(2)),
            ("append", 1, 3, b"data", {WRITER: 7}),
            id="StreamSegmentAppendOperation",
        ),
        pytest.param(
            lambda c: c.seal_segment("s"), ("seal", 1, 3), id="StreamSegmentSealOperation"
        ),
        pytest.param(
            lambda c: c.truncate_segment("s", offset=2),
            ("truncate", 1, 2),
            id="StreamSegmentTruncateOperation",
        ),
        pytest.param(
            lambda c: c.merge_segment("s", "s#transaction." + "0" * 32),
            ("merge", 1, 2, 3, 5),
            id="MergeTransactionOperation",
        ),
        pytest.param(
            lambda c: c.create_segment("t"), ("map", 3, "t"), id="StreamSegmentMapOperation"
        ),
        pytest.param(
            lambda c: c.create_segment("s#transaction." + "1" * 32),
            ("map", 3, "s#transaction." + "1" * 32),
            id="TransactionMapOperation",
        ),
        pytest.param(
            lambda c: c.update_attributes("s", accumulate(-1)),
            ("update", 1, {WRITER: 4}),
            id="UpdateAttributesOperation",
        ),
        pytest.param(lambda c: c.delete_segment("s"), ("delete", 1), id="DeleteSegmentOperation"),
    ],
)
async def test_log_operations_every_kind_is_in_the_log_when_it_is_answered(
    tiers: LocalTiers,
    still_clock: trio.testing.MockClock,
    act: Act,
    expected: tuple[object, ...],
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s", attributes={WRITER: 5})
        await container.append("s", b"abc")
        await container.create_segment("s#transaction." + "0" * 32)
        await container.append("s#transaction." + "0" * 32, b"12345")
        count = len(tiers.log.operations)
        await act(container)
        [operation] = tiers.log.operations[count:]
        assert facts(operation) == expected
        assert operation.sequence_number == tiers.log.operations[count - 1].sequence_number + 1
        assert all(entry.durable for entry in tiers.log.entries)


def checkpoints(tiers: LocalTiers) -> list[CheckpointOperation]:
    return [each for each in tiers.log.operations if isinstance(each, CheckpointOperation)]


async def test_log_operations_metadata_checkpoint_has_a_snapshot_of_everything(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(held_bytes_max=1) as container:
        for name in ("first-segment", "second-segment"):
            await container.create_segment(name)
        await until(lambda: b"second-segment" in bytes(checkpoints(tiers)[-1].snapshot))
        assert b"first-segment" in bytes(checkpoints(tiers)[-1].snapshot)


async def test_cached_appends_leave_their_bytes_in_the_cache_and_point_there(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    log = MemoryLog()
    for number in range(1000):
        operation = AppendOperation("s", bytes(1000))
        operation.segment_id, operation.offset = 1, 1000 * number
        operation.sequence_number = 7 + number
        log.add(operation)
    [entry] = log.remove_all()
    assert isinstance(entry, AppendedRange)
    assert (entry.offset, entry.end, entry.first_sequence_number) == (0, 1_000_000, 7)
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        before = tiers.cache.stored_bytes
        await container.append("s", bytes(100_000))
        assert tiers.cache.stored_bytes - before == 100_000, "once, for readers and for tier 2"
        tiers.chunks.refused.clear()


# ---- Information flow in the durable log ---------------------------------------------------------


async def test_information_flow_1_the_caller_waits_until_the_operation_is_durable(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        tiers.log.holding = True
        answers: list[int] = []
        container.append_nowait("s", b"data", on_complete=lambda error, n: answers.append(n))
        await until(lambda: tiers.log.held_count == 1)
        assert facts(tiers.log.operations[-1])[0] == "append", "it is on its way"
        assert answers == []
        tiers.log.release()
        assert answers == [4]


async def test_information_flow_2_and_3_1_all_that_is_queued_is_taken_at_once(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        count = len(tiers.log.entries)
        answers: list[int] = []
        for _ in range(200):
            container.append_nowait("s", b"event", on_complete=lambda error, n: answers.append(n))
        assert len(tiers.log.entries) == count, "nothing is done by the caller"
        await container.wait_in_flight("s")
        assert answers == [5 * number for number in range(1, 201)]
        assert len(tiers.log.entries) == count + 1, "one write for all"


async def test_information_flow_3_2_operations_are_checked_and_get_their_offsets_in_order(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        count = len(tiers.log.operations)
        answers: list[object] = []

        def append(data: bytes, expected_offset: int | None = None) -> None:
            container.append_nowait(
                "s",
                data,
                expected_offset=expected_offset,
                on_complete=lambda error, n: answers.append(type(error) if error else n),
            )

        # None of these is durable yet when the next one is checked.
        append(b"one")
        append(b"two", 3)
        append(b"no", 3)
        append(b"three", 6)
        await container.wait_in_flight("s")
        assert [answers[0], answers[1], answers[3]] == [3, 6, 11]
        assert isinstance(answers[2], type)
        assert issubclass(answers[2], SegmentError)
        logged = tiers.log.operations[count:]
        assert [facts(each)[2:4] for each in logged] == [(0, b"one"), (3, b"two"), (6, b"three")]
        first = logged[0].sequence_number
        assert [each.sequence_number for each in logged] == [first, first + 1, first + 2]


async def test_information_flow_3_3_an_operation_may_span_data_frames_and_frames_are_full(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    data = Random(0).randbytes(3 * MIB)
    async with tiers.container() as container:
        await container.create_segment("s")
        count = len(tiers.log.entries)
        await container.append("s", data)
        frames = [entry.data for entry in tiers.log.entries[count:]]
        assert len(frames) == 4
        assert all(len(frame) == LOG_ENTRY_BYTES_MAX for frame in frames[:-1])
        [operation] = operations_in(frames)
        assert facts(operation)[3] == data


async def test_information_flow_4_what_is_durable_and_nothing_else_takes_effect(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        tiers.log.holding = True
        container.append_nowait("s", b"data", on_complete=lambda error, length: None)
        tail: list[bytes] = []

        async def read_tail() -> None:
            tail.append(bytes((await container.read("s", offset=0, length_max=10)).data))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_tail)
            await until(lambda: tiers.log.held_count == 1)
            assert container.segment_info("s").length == 0
            assert tail == []
            tiers.log.release()
            assert container.segment_info("s").length == 4
        assert tail == [b"data"]


async def test_information_flow_5_several_frames_are_in_flight_and_complete_in_order(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        tiers.log.holding = True
        answers: list[int] = []
        for _ in range(5):
            container.append_nowait(
                "s", bytes(900_000), on_complete=lambda error, n: answers.append(n // 900_000)
            )
        await until(lambda: tiers.log.held_count >= 4)  # full frames wait for nobody
        assert answers == []
        tiers.log.release(2)
        first = list(answers)
        assert first == list(range(1, len(first) + 1))
        assert 0 < len(first) < 5
        tiers.log.release()
        tiers.log.holding = False
        await container.wait_in_flight("s")
        assert answers == [1, 2, 3, 4, 5]


# ---- Truncation and checkpoints ------------------------------------------------------------------


async def test_truncation_happens_at_checkpoints_which_the_log_begins_with_then(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(held_bytes_max=1, crashes=True) as container:
        await container.create_segment("s")
        for number in range(5):
            await container.append("s", b"%d" % number)
            await until(lambda number=number: len(tiers.log.truncations) > number)
        by_address = {entry.address: entry for entry in tiers.log.entries}
        for address in tiers.log.truncations:
            assert facts(by_address[address].operations[0]) == ("checkpoint",)
    async with tiers.container() as container:
        assert facts(tiers.log.read_operations[0]) == ("checkpoint",)
        assert await read_all(container, "s") == b"01234"


async def test_truncation_of_the_log_is_not_that_of_a_segment(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(held_bytes_max=1) as container:
        await container.create_segment("s")
        await container.append("s", b"0123456789")
        await until(lambda: tiers.log.truncations)
        assert container.segment_info("s").start_offset == 0
        assert await read_all(container, "s") == b"0123456789"
    async with tiers.container() as container:
        await trio.sleep(30)
        count = len(tiers.log.truncations)
        await container.truncate_segment("s", offset=5)
        await trio.sleep(30)
        assert len(tiers.log.truncations) == count
        assert await read_all(container, "s") == b"56789"


# ---- Operation processor and metadata updater ----------------------------------------------------


async def test_operation_processor_refuses_what_is_wrong_and_writes_none_of_it(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.seal_segment("s")
        count = len(tiers.log.operations)
        with pytest.raises(SegmentExistsError):
            await container.create_segment("s")
        with pytest.raises(SegmentSealedError):
            await container.append("s", b"x")
        with pytest.raises(SegmentError):
            await container.truncate_segment("s", offset=1)
        with pytest.raises(SegmentError):
            await container.merge_segment("s", "missing")
        assert len(tiers.log.operations) == count


async def test_operation_metadata_updater_goes_back_to_what_is_durable_when_the_log_fails(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    answers: list[object] = []
    with pytest.RaisesGroup(DataLogError, flatten_subgroups=True):
        async with tiers.container(crashes=True) as container:
            await container.create_segment("s")
            await container.append("s", b"durable")
            tiers.log.failing = True
            for _ in range(3):
                container.append_nowait(
                    "s", b" not", on_complete=lambda error, n: answers.append(type(error))
                )
            await trio.sleep_forever()
    assert answers == [ContainerOfflineError] * 3
    async with tiers.container() as container:
        assert container.segment_info("s").length == 7
        assert await container.append("s", b", and on") == 15
        assert await read_all(container, "s") == b"durable, and on"


# ---- Durable data log and in-memory operation log ------------------------------------------------


async def test_durable_data_log_is_read_by_recoveries_alone(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(crashes=True, refused=["write"]) as container:
        assert tiers.log.read_operations == []
        await container.create_segment("s")
        for number in range(50):
            await container.append("s", b"%02d" % number)
        await trio.sleep(30)
        assert await read_all(container, "s") == b"".join(b"%02d" % n for n in range(50))
        assert (len(tiers.log.read_entries), tiers.log.read_count) == (0, 0)
        written = [facts(each) for each in tiers.log.operations]
    async with tiers.container() as container:
        assert [facts(each) for each in tiers.log.read_operations] == written, "in the same order"
        assert await read_all(container, "s") == b"".join(b"%02d" % n for n in range(50))


def test_in_memory_operation_log_is_a_chain_in_the_order_of_the_durable_one() -> None:
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


def owed_count(container: Container) -> int:
    """Count the operations that tier 2 has not taken."""
    [gauge] = [each for each in container.throttle_snapshot().gauges if "operation" in each.name]
    return gauge.value


async def test_in_memory_operation_log_is_truncated_with_the_durable_one(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"], held_bytes_max=1) as container:
        await container.create_segment("s")
        await container.append("s", b"one")
        await container.truncate_segment("s", offset=1)
        await trio.sleep(30)
        count = len(tiers.log.truncations)
        assert owed_count(container) > 0, "tier 2 owes them"
        tiers.chunks.refused.clear()
        await until(lambda: len(tiers.log.truncations) > count)
        assert owed_count(container) == 0
