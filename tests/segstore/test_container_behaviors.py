"""The behavior that every segment container has, whatever its parts are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.api import ReadResult, SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    ROLLOVER_SIZE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.model.segment_attributes import AttributeCache
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.models.memory_container import MemoryContainer

WRITER = bytes(range(16))
OTHER_WRITER = bytes(range(16, 32))
OpenContainer = Callable[[], AbstractAsyncContextManager[SegmentContainer]]


@asynccontextmanager
async def open_memory_container() -> AsyncIterator[SegmentContainer]:
    yield MemoryContainer(3)


@asynccontextmanager
async def open_durable_container() -> AsyncIterator[SegmentContainer]:
    storage = next_owner(MemoryChunkStorage())
    cache_manager = CacheManager(StreamingCache(64 * 1024 * 1024))
    async with open_container(3, MemoryDataLogFactory(), storage, cache_manager) as container:
        yield container


@asynccontextmanager
async def open_forgetful_container() -> AsyncIterator[SegmentContainer]:
    """Open a durable container that keeps no indexed attribute in memory, and flushes always."""
    storage = next_owner(MemoryChunkStorage())
    cache_manager = CacheManager(StreamingCache(64 * 1024 * 1024))
    async with (
        open_container(
            3,
            MemoryDataLogFactory(),
            storage,
            cache_manager,
            attribute_pages=PageCache(0),
            attribute_cache=AttributeCache(segment_count_max=0, container_count_max=0),
        ) as container,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(flush_always, container)
        yield container
        nursery.cancel_scope.cancel()


async def flush_always(container: Container) -> None:
    while True:
        await container.flush()
        await trio.sleep(0.0005)


IMPLEMENTATIONS: dict[str, OpenContainer] = {
    "memory": open_memory_container,
    "durable": open_durable_container,
    "forgetful": open_forgetful_container,
}
"""Each opens an empty container with the id 3."""


@pytest.fixture(params=IMPLEMENTATIONS)
async def container(request: pytest.FixtureRequest) -> AsyncIterator[SegmentContainer]:
    async with IMPLEMENTATIONS[request.param]() as opened:
        yield opened


class Answers:
    """A collector of completions of reads or appends, labelled, in the order in which they come."""

    def __init__(self) -> None:
        self.all: list[tuple[str, object]] = []
        self._changed = trio.Event()

    def expect(self, label: str) -> Callable[[SegmentStoreError | None, object], None]:
        def on_complete(error: SegmentStoreError | None, value: object) -> None:
            self.all.append((label, error or value))
            self._changed.set()

        return on_complete

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.all]

    def value(self, label: str) -> object:
        [value] = [value for name, value in self.all if name == label]
        return value

    def data(self, label: str) -> bytes:
        value = self.value(label)
        assert isinstance(value, ReadResult), value
        return value.data

    async def wait(self, count: int) -> None:
        with trio.fail_after(60):
            while len(self.all) < count:
                self._changed = trio.Event()
                await self._changed.wait()


async def read_all(container: SegmentContainer, name: str, *, offset: int = 0) -> bytes:
    length = container.segment_info(name).length
    data = b""
    while offset + len(data) < length:
        result = await container.read(name, offset=offset + len(data), length_max=1 << 20)
        data += result.data
    return data


def compare_and_set(writer: bytes, value: int, expected: int) -> AttributeUpdate:
    return AttributeUpdate(writer, AttributeUpdateType.REPLACE_IF_EQUALS, value, expected)


async def attribute(container: SegmentContainer, name: str, attribute_id: bytes) -> int | None:
    return (await container.get_attributes(name, [attribute_id])).get(attribute_id)


# ---- Create, info, delete ------------------------------------------------------------------------


async def test_a_container_knows_its_number(container: SegmentContainer) -> None:
    assert container.container_id == 3


async def test_a_new_segment_is_empty_and_open(container: SegmentContainer) -> None:
    await container.create_segment("s")
    info = container.segment_info("s")
    assert (info.name, info.start_offset, info.length, info.sealed) == ("s", 0, 0, False)
    assert info.segment_type == SegmentType.STREAM


async def test_the_info_of_a_segment_is_found(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"data")
    assert await container.find_info("s") == container.segment_info("s")
    with pytest.raises(NoSuchSegmentError):
        await container.find_info("none")


async def test_a_segment_is_created_with_its_attributes(container: SegmentContainer) -> None:
    kind = int(SegmentType.TABLE)
    await container.create_segment("s", attributes={ROLLOVER_SIZE: 7, ATTRIBUTE_SEGMENT_TYPE: kind})
    assert await attribute(container, "s", ROLLOVER_SIZE) == 7
    assert container.segment_info("s").segment_type == SegmentType.TABLE


async def test_creating_an_existing_segment_is_refused_and_changes_nothing(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s", attributes={WRITER: 1})
    await container.append("s", b"data")
    with pytest.raises(SegmentExistsError):
        await container.create_segment("s", attributes={WRITER: 2})
    assert await attribute(container, "s", WRITER) == 1
    assert container.segment_info("s").length == 4


async def test_operations_on_a_missing_segment_name_it(container: SegmentContainer) -> None:
    update = AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, 1)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: container.append("s", b"x"),
        lambda: container.update_attributes("s", [update]),
        lambda: container.seal_segment("s"),
        lambda: container.truncate_segment("s", offset=0),
        lambda: container.delete_segment("s"),
        lambda: container.get_attributes("s", [WRITER]),
        lambda: container.read("s", offset=0, length_max=1),
    ]
    for attempt in attempts:
        with pytest.raises(NoSuchSegmentError) as caught:
            await attempt()
        assert caught.value.segment == "s"
    with pytest.raises(NoSuchSegmentError):
        container.segment_info("s")


async def test_a_deleted_segment_can_be_created_again_empty(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"old", attribute_updates=[compare_and_set(WRITER, 1, -(2**63))])
    await container.delete_segment("s")
    with pytest.raises(NoSuchSegmentError):
        container.segment_info("s")
    await container.create_segment("s")
    assert container.segment_info("s").length == 0
    assert await attribute(container, "s", WRITER) is None
    await container.append("s", b"new")
    assert await read_all(container, "s") == b"new"


async def test_a_sealed_segment_can_be_deleted(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.seal_segment("s")
    await container.delete_segment("s")
    with pytest.raises(NoSuchSegmentError):
        container.segment_info("s")


# ---- Append --------------------------------------------------------------------------------------


async def test_an_append_returns_the_length_after_it(container: SegmentContainer) -> None:
    await container.create_segment("s")
    assert await container.append("s", b"abc") == 3
    assert await container.append("s", bytearray(b"de")) == 5
    assert await container.append("s", memoryview(b"f")) == 6
    assert container.segment_info("s").length == 6
    assert await read_all(container, "s") == b"abcdef"


async def test_an_empty_append_is_acknowledged_and_updates_attributes(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    update = compare_and_set(WRITER, 9, NULL_ATTRIBUTE_VALUE)
    assert await container.append("s", b"", attribute_updates=[update]) == 0
    assert await attribute(container, "s", WRITER) == 9


async def test_appends_take_effect_and_complete_in_call_order(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    for number in range(100):
        data = b"%02d" % number
        container.append_nowait("s", data, on_complete=answers.expect(str(number)))
    await answers.wait(100)
    assert answers.labels == [str(number) for number in range(100)]
    assert [value for _, value in answers.all] == [2 * (number + 1) for number in range(100)]
    assert await read_all(container, "s") == b"".join(b"%02d" % number for number in range(100))


async def test_an_append_is_not_visible_before_it_completes(container: SegmentContainer) -> None:
    await container.create_segment("s")
    lengths: list[int] = []
    done = trio.Event()

    def on_complete(error: SegmentStoreError | None, length: int) -> None:
        lengths.append(container.segment_info("s").length)
        done.set()

    container.append_nowait("s", b"abc", on_complete=on_complete)
    assert container.segment_info("s").length == 0
    await done.wait()
    assert lengths == [3]


async def test_a_failing_append_does_not_stop_those_behind_it(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    container.append_nowait("s", b"a", on_complete=answers.expect("first"))
    container.append_nowait("s", b"b", expected_offset=9, on_complete=answers.expect("wrong"))
    container.append_nowait("s", b"c", on_complete=answers.expect("last"))
    await answers.wait(3)
    assert answers.labels == ["first", "wrong", "last"]
    assert isinstance(answers.value("wrong"), BadOffsetError)
    assert await read_all(container, "s") == b"ac"


async def test_the_caller_of_a_completed_append_may_reuse_its_buffer(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    buffer = bytearray(b"good")
    await container.append("s", buffer)
    buffer[:] = b"evil"
    assert await read_all(container, "s") == b"good"


async def test_a_cancelled_append_still_takes_effect(container: SegmentContainer) -> None:
    await container.create_segment("s")
    with trio.CancelScope() as scope:
        scope.cancel()
        await container.append("s", b"kept")
    await container.wait_in_flight("s")
    assert container.segment_info("s").length in (0, 4)
    await container.append("s", b"after")
    assert (await read_all(container, "s")).removeprefix(b"kept") == b"after"


async def test_large_appends_come_back_whole(container: SegmentContainer) -> None:
    await container.create_segment("s")
    data = bytes(range(256)) * (3 << 12)
    await container.append("s", data)
    await container.append("s", data)
    assert await read_all(container, "s") == data + data


# ---- Conditions ----------------------------------------------------------------------------------


async def test_a_conditional_append_needs_exactly_the_expected_length(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    assert await container.append("s", b"abc", expected_offset=0) == 3
    for wrong in (0, 2, 4):
        with pytest.raises(BadOffsetError) as caught:
            await container.append("s", b"x", expected_offset=wrong)
        assert (caught.value.expected, caught.value.actual) == (wrong, 3)
    assert await container.append("s", b"d", expected_offset=3) == 4


async def test_conditions_see_the_operations_in_flight(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    for number in range(5):
        container.append_nowait(
            "s",
            b"x" * 10,
            attribute_updates=[
                compare_and_set(WRITER, number, number - 1 if number else NULL_ATTRIBUTE_VALUE)
            ],
            expected_offset=10 * number,
            on_complete=answers.expect(str(number)),
        )
    await answers.wait(5)
    assert [value for _, value in answers.all] == [10, 20, 30, 40, 50]


async def test_a_wrong_attribute_condition_is_reported_before_a_wrong_offset(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    with pytest.raises(BadAttributeUpdateError):
        await container.append(
            "s", b"x", attribute_updates=[compare_and_set(WRITER, 1, 0)], expected_offset=5
        )


async def test_a_refused_append_changes_neither_data_nor_attributes(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    accumulate = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)
    with pytest.raises(BadAttributeUpdateError):
        await container.append(
            "s", b"x", attribute_updates=[accumulate, compare_and_set(WRITER, 1, 0)]
        )
    with pytest.raises(BadOffsetError):
        await container.append("s", b"x", attribute_updates=[accumulate], expected_offset=5)
    assert container.segment_info("s").length == 0
    assert await container.get_attributes("s", [EVENT_COUNT, WRITER]) == {}


async def test_an_append_that_is_wrong_twice_is_refused_for_its_attributes(
    container: SegmentContainer,
) -> None:
    """The order is the original's: a writer that sends again learns that it did."""
    await container.create_segment("s", attributes={WRITER: 7})
    with pytest.raises(BadAttributeUpdateError):
        await container.append(
            "s", b"x", attribute_updates=[compare_and_set(WRITER, 8, 6)], expected_offset=5
        )


async def test_a_failed_compare_tells_whether_the_attribute_was_missing(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s", attributes={OTHER_WRITER: 5})
    with pytest.raises(BadAttributeUpdateError) as missing:
        await container.update_attributes("s", [compare_and_set(WRITER, 1, 0)])
    assert (missing.value.attribute_id, missing.value.previous_value_missing) == (WRITER, True)
    with pytest.raises(BadAttributeUpdateError) as present:
        await container.update_attributes("s", [compare_and_set(OTHER_WRITER, 1, 0)])
    assert not present.value.previous_value_missing


# ---- Attributes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "update_type", "value", "after"),
    [
        (None, AttributeUpdateType.NONE, 4, 4),
        (3, AttributeUpdateType.NONE, 4, None),
        (None, AttributeUpdateType.REPLACE, 4, 4),
        (3, AttributeUpdateType.REPLACE, 4, 4),
        (None, AttributeUpdateType.REPLACE_IF_GREATER, -4, -4),
        (3, AttributeUpdateType.REPLACE_IF_GREATER, 4, 4),
        (3, AttributeUpdateType.REPLACE_IF_GREATER, 3, None),
        (None, AttributeUpdateType.ACCUMULATE, 4, 4),
        (3, AttributeUpdateType.ACCUMULATE, -4, -1),
        (3, AttributeUpdateType.REPLACE_IF_EQUALS, 4, 4),
        (2, AttributeUpdateType.REPLACE_IF_EQUALS, 4, None),
        (None, AttributeUpdateType.REPLACE_IF_EQUALS, 4, None),
    ],
)
async def test_attribute_verbs(
    container: SegmentContainer,
    before: int | None,
    update_type: AttributeUpdateType,
    value: int,
    after: int | None,
) -> None:
    await container.create_segment("s", attributes={} if before is None else {WRITER: before})
    update = AttributeUpdate(WRITER, update_type, value, expected=3)
    if after is None:
        with pytest.raises(BadAttributeUpdateError):
            await container.update_attributes("s", [update])
        assert await attribute(container, "s", WRITER) == before
    else:
        await container.update_attributes("s", [update])
        assert await attribute(container, "s", WRITER) == after


async def test_the_null_value_means_absent_both_ways(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.update_attributes("s", [compare_and_set(WRITER, 1, NULL_ATTRIBUTE_VALUE)])
    await container.update_attributes("s", [compare_and_set(WRITER, NULL_ATTRIBUTE_VALUE, 1)])
    assert await container.get_attributes("s", [WRITER]) == {}
    await container.update_attributes("s", [compare_and_set(WRITER, 2, NULL_ATTRIBUTE_VALUE)])
    assert await attribute(container, "s", WRITER) == 2


async def test_updates_of_one_call_are_atomic_and_see_each_other(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    await container.update_attributes(
        "s", [compare_and_set(WRITER, 1, NULL_ATTRIBUTE_VALUE), compare_and_set(WRITER, 2, 1)]
    )
    with pytest.raises(BadAttributeUpdateError):
        await container.update_attributes(
            "s", [compare_and_set(WRITER, 3, 2), compare_and_set(OTHER_WRITER, 3, 2)]
        )
    assert await attribute(container, "s", WRITER) == 2


async def test_a_transient_segment_takes_at_most_16_extended_attributes(
    container: SegmentContainer,
) -> None:
    kind = int(SegmentType.TRANSIENT)
    await container.create_segment("t", attributes={ATTRIBUTE_SEGMENT_TYPE: kind})
    for number in range(16):
        update = compare_and_set(bytes([number]) * 16, number, NULL_ATTRIBUTE_VALUE)
        await container.append("t", b"x", attribute_updates=[update])
    update = compare_and_set(bytes([16]) * 16, 16, NULL_ATTRIBUTE_VALUE)
    with pytest.raises(InvalidRequestError):
        await container.append("t", b"x", attribute_updates=[update])
    assert container.segment_info("t").length == 16


async def iterated(
    container: SegmentContainer, name: str, first: bytes, last: bytes
) -> list[tuple[bytes, int]]:
    return [
        item
        async for page in container.attribute_iterator(name, first=first, last=last)
        for item in page
    ]


async def test_iteration_gives_extended_attributes_in_order_of_ids(
    container: SegmentContainer,
) -> None:
    ids = [bytes([number]) * 16 for number in (0, 1, 9, 127, 128, 255)]
    await container.create_segment("s", attributes={ROLLOVER_SIZE: 7, EVENT_COUNT: 1})
    for number, attribute_id in enumerate(reversed(ids)):
        await container.update_attributes(
            "s", [AttributeUpdate(attribute_id, AttributeUpdateType.REPLACE, number)]
        )
    expected = list(zip(ids, range(5, -1, -1), strict=True))
    assert await iterated(container, "s", ids[0], ids[-1]) == expected
    assert await iterated(container, "s", ids[1], ids[3]) == expected[1:4]
    assert await iterated(container, "s", ids[3], ids[1]) == []
    removal = AttributeUpdate(ids[2], AttributeUpdateType.REPLACE, NULL_ATTRIBUTE_VALUE)
    await container.update_attributes("s", [removal])
    assert await iterated(container, "s", ids[1], ids[3]) == [expected[1], expected[3]]


async def test_iteration_goes_through_thousands_of_attributes(container: SegmentContainer) -> None:
    await container.create_segment("s")
    ids = [number.to_bytes(16, "big") for number in range(3000)]
    for start in range(0, 3000, 500):
        updates = [
            AttributeUpdate(each, AttributeUpdateType.REPLACE, start)
            for each in ids[start : start + 500]
        ]
        await container.update_attributes("s", updates)
    found = await iterated(container, "s", ids[10], ids[2990])
    assert [each for each, _ in found] == ids[10:2991]
    assert {value for _, value in found} == set(range(0, 3000, 500))


async def test_iteration_of_a_missing_segment_fails(container: SegmentContainer) -> None:
    with pytest.raises(NoSuchSegmentError):
        await iterated(container, "s", bytes(16), bytes(16))


async def test_all_ids_of_a_segment_have_the_same_length(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.create_segment("t", attributes={ATTRIBUTE_ID_LENGTH: 4, b"four": 4})
    for name, wrong, right in (("s", b"four", WRITER), ("t", WRITER, b"more")):
        for verb in AttributeUpdateType:
            with pytest.raises(InvalidRequestError):
                await container.update_attributes(name, [AttributeUpdate(wrong, verb, 1)])
        await container.update_attributes(
            name, [AttributeUpdate(right, AttributeUpdateType.ACCUMULATE, 1)]
        )
        assert await container.get_attributes(name, [right, wrong]) == {right: 1}
        with pytest.raises(InvalidRequestError):
            await iterated(container, name, wrong, wrong)
    with pytest.raises(InvalidRequestError):
        await container.create_segment("u", attributes={b"four": 4})
    assert await iterated(container, "t", b"a" * 4, b"z" * 4) == [(b"four", 4), (b"more", 1)]


# ---- Seal ----------------------------------------------------------------------------------------


async def test_a_seal_returns_the_length_and_refuses_what_follows(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s", attributes={WRITER: 7})
    await container.append("s", b"abc")
    assert await container.seal_segment("s") == 3
    assert container.segment_info("s").sealed
    with pytest.raises(SegmentSealedError):
        await container.append("s", b"")
    with pytest.raises(SegmentSealedError):
        await container.seal_segment("s")
    with pytest.raises(SegmentSealedError):
        await container.update_attributes("s", [compare_and_set(WRITER, 8, 7)])
    assert await attribute(container, "s", WRITER) == 7


async def test_a_sealed_segment_is_reported_before_failed_conditions(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    await container.seal_segment("s")
    with pytest.raises(SegmentSealedError):
        await container.append(
            "s", b"x", attribute_updates=[compare_and_set(WRITER, 1, 0)], expected_offset=5
        )


async def test_a_seal_is_a_barrier_among_queued_appends(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    container.append_nowait("s", b"before", on_complete=answers.expect("before"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.seal_segment, "s")
        await answers.wait(1)
    container.append_nowait("s", b"after", on_complete=answers.expect("after"))
    await answers.wait(2)
    assert answers.value("before") == 6
    assert isinstance(answers.value("after"), SegmentSealedError)


# ---- Truncate ------------------------------------------------------------------------------------


async def test_truncation_moves_the_start_and_keeps_offsets(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abcdef")
    await container.truncate_segment("s", offset=2)
    info = container.segment_info("s")
    assert (info.start_offset, info.length) == (2, 6)
    assert await read_all(container, "s", offset=2) == b"cdef"
    with pytest.raises(SegmentTruncatedError) as caught:
        await container.read("s", offset=1, length_max=9)
    assert caught.value.start_offset == 2


async def test_truncation_is_bounded_by_start_and_length(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abcdef")
    await container.truncate_segment("s", offset=2)
    await container.truncate_segment("s", offset=2)
    for wrong in (1, 7):
        with pytest.raises(SegmentTruncatedError) as caught:
            await container.truncate_segment("s", offset=wrong)
        assert caught.value.start_offset == 2
    await container.truncate_segment("s", offset=6)
    assert container.segment_info("s").start_offset == 6


async def test_a_sealed_segment_can_be_truncated(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abc")
    await container.seal_segment("s")
    await container.truncate_segment("s", offset=3)
    result = await container.read("s", offset=3, length_max=9)
    assert (result.data, result.end_of_segment) == (b"", True)


# ---- Merge ---------------------------------------------------------------------------------------


async def test_a_merge_moves_all_bytes_and_the_event_count(container: SegmentContainer) -> None:
    await container.create_segment("target", attributes={EVENT_COUNT: 2})
    await container.create_segment("source", attributes={EVENT_COUNT: 3})
    await container.append("target", b"first|")
    await container.append("source", b"second|")
    assert await container.merge_segment("target", "source") == 13
    assert await container.append("target", b"third") == 18
    assert await read_all(container, "target") == b"first|second|third"
    assert await attribute(container, "target", EVENT_COUNT) == 5
    with pytest.raises(NoSuchSegmentError):
        container.segment_info("source")


async def test_merging_twice_says_that_the_source_is_gone(container: SegmentContainer) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    await container.merge_segment("target", "source")
    with pytest.raises(NoSuchSegmentError) as caught:
        await container.merge_segment("target", "source")
    assert caught.value.segment == "source"


async def test_a_sealed_source_merges(container: SegmentContainer) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    await container.append("source", b"data")
    await container.seal_segment("source")
    assert await container.merge_segment("target", "source") == 4


async def test_merge_refusals_name_the_segment_at_fault(container: SegmentContainer) -> None:
    for name in ("target", "source", "sealed", "truncated"):
        await container.create_segment(name)
    await container.seal_segment("sealed")
    await container.append("truncated", b"abc")
    await container.truncate_segment("truncated", offset=1)
    refusals: list[tuple[str, str, type[SegmentStoreError], str]] = [
        ("missing", "source", NoSuchSegmentError, "missing"),
        ("target", "missing", NoSuchSegmentError, "missing"),
        ("sealed", "source", SegmentSealedError, "sealed"),
        ("target", "truncated", SegmentTruncatedError, "truncated"),
        ("target", "target", InvalidRequestError, "target"),
    ]
    for target, source, error, at_fault in refusals:
        with pytest.raises(error) as caught:
            await container.merge_segment(target, source)
        assert getattr(caught.value, "segment", None) == at_fault
    await container.append("source", b"still open")


async def test_a_merge_with_a_failed_condition_changes_nothing(container: SegmentContainer) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    await container.append("source", b"data")
    with pytest.raises(BadAttributeUpdateError):
        await container.merge_segment(
            "target", "source", attribute_updates=[compare_and_set(WRITER, 1, 0)]
        )
    assert container.segment_info("target").length == 0
    await container.append("source", b"more")
    update = compare_and_set(WRITER, 1, NULL_ATTRIBUTE_VALUE)
    assert await container.merge_segment("target", "source", attribute_updates=[update]) == 8
    assert await attribute(container, "target", WRITER) == 1


async def test_an_empty_source_still_applies_the_attributes(container: SegmentContainer) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    update = compare_and_set(WRITER, 1, NULL_ATTRIBUTE_VALUE)
    assert await container.merge_segment("target", "source", attribute_updates=[update]) == 0
    assert await attribute(container, "target", WRITER) == 1


async def test_appends_before_a_merge_are_part_of_it(container: SegmentContainer) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    answers = Answers()
    container.append_nowait("target", b"1", on_complete=answers.expect("target"))
    container.append_nowait("source", b"2", on_complete=answers.expect("source"))
    assert await container.merge_segment("target", "source") == 2
    assert await read_all(container, "target") == b"12"
    assert sorted(answers.labels) == ["source", "target"]


# ---- Reads ---------------------------------------------------------------------------------------


async def test_a_read_returns_at_most_length_max_and_at_least_one_byte(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    await container.append("s", b"abcdef")
    result = await container.read("s", offset=1, length_max=3)
    assert result.offset == 1
    assert b"bcd".startswith(result.data)
    assert result.data
    assert not result.end_of_segment


async def test_a_read_that_can_be_served_completes_at_once(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abc")
    answers = Answers()
    handle = container.read_nowait("s", offset=0, length_max=9, on_complete=answers.expect("read"))
    assert handle is None
    assert answers.data("read") == b"abc"


async def test_a_read_at_the_tail_waits_for_data(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abc")
    answers = Answers()
    handle = container.read_nowait("s", offset=3, length_max=9, on_complete=answers.expect("read"))
    assert handle is not None
    await trio.testing.wait_all_tasks_blocked()
    assert answers.all == []
    await container.append("s", b"def")
    await answers.wait(1)
    assert answers.data("read") == b"def"


async def test_a_read_that_is_woken_by_data_sees_their_length(container: SegmentContainer) -> None:
    await container.create_segment("s")
    lengths: list[int] = []
    container.read_nowait(
        "s",
        offset=0,
        length_max=10,
        on_complete=lambda *_: lengths.append(container.segment_info("s").length),
    )
    await container.append("s", b"abc")
    assert lengths == [3]


async def test_a_read_that_waited_for_data_is_put_off_when_the_reader_has_no_room(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    answers = Answers()
    for name in ("none", "some"):
        container.read_nowait(
            "s",
            offset=0,
            length_max=9,
            on_complete=answers.expect(name),
            has_room=lambda name=name: name == "some",
        )
    await container.append("s", b"abc")
    await answers.wait(2)
    assert answers.data("none") == b""
    assert answers.data("some") == b"abc"
    assert (await container.read("s", offset=0, length_max=9)).data == b"abc"


async def test_a_read_beyond_the_tail_waits_until_its_offset_is_written(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    answers = Answers()
    container.read_nowait("s", offset=5, length_max=9, on_complete=answers.expect("read"))
    await container.append("s", b"01234")
    assert answers.all == []
    await container.append("s", b"56")
    await answers.wait(1)
    assert answers.data("read") == b"56"


async def test_an_empty_append_does_not_wake_a_parked_read(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    container.read_nowait("s", offset=0, length_max=9, on_complete=answers.expect("read"))
    await container.append("s", b"")
    await container.wait_in_flight("s")
    assert answers.all == []


async def test_one_append_wakes_all_parked_reads(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    for label, length_max in (("a", 100), ("b", 2), ("c", 100)):
        container.read_nowait(
            "s", offset=0, length_max=length_max, on_complete=answers.expect(label)
        )
    await container.append("s", b"data")
    await answers.wait(3)
    assert [answers.data(label) for label in "abc"] == [b"data", b"da", b"data"]


async def test_a_cancelled_read_is_never_answered(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    handle = container.read_nowait(
        "s", offset=0, length_max=9, on_complete=answers.expect("cancelled")
    )
    container.read_nowait("s", offset=0, length_max=9, on_complete=answers.expect("kept"))
    assert handle is not None
    handle.cancel()
    handle.cancel()
    await container.append("s", b"data")
    await answers.wait(1)
    await container.wait_in_flight("s")
    assert answers.labels == ["kept"]


async def test_a_seal_answers_parked_reads_with_sealed(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abc")
    answers = Answers()
    container.read_nowait("s", offset=3, length_max=9, on_complete=answers.expect("tail"))
    container.read_nowait("s", offset=7, length_max=9, on_complete=answers.expect("beyond"))
    await container.seal_segment("s")
    await answers.wait(2)
    assert isinstance(answers.value("tail"), SegmentSealedError)
    assert isinstance(answers.value("beyond"), SegmentSealedError)


async def test_a_deletion_answers_parked_reads(container: SegmentContainer) -> None:
    await container.create_segment("s")
    answers = Answers()
    container.read_nowait("s", offset=0, length_max=9, on_complete=answers.expect("read"))
    await container.delete_segment("s")
    await answers.wait(1)
    assert isinstance(answers.value("read"), NoSuchSegmentError)


async def test_a_merge_serves_reads_parked_on_the_target_and_ends_those_on_the_source(
    container: SegmentContainer,
) -> None:
    await container.create_segment("target")
    await container.create_segment("source")
    await container.append("source", b"data")
    answers = Answers()
    container.read_nowait("target", offset=0, length_max=9, on_complete=answers.expect("target"))
    container.read_nowait("source", offset=4, length_max=9, on_complete=answers.expect("source"))
    await container.merge_segment("target", "source")
    await answers.wait(2)
    assert answers.data("target") == b"data"
    assert isinstance(answers.value("source"), SegmentSealedError | NoSuchSegmentError)


async def test_the_end_of_a_sealed_segment_is_marked(container: SegmentContainer) -> None:
    await container.create_segment("s")
    await container.append("s", b"abc")
    await container.seal_segment("s")
    whole = await container.read("s", offset=0, length_max=9)
    assert (whole.data, whole.end_of_segment) == (b"abc", True)
    part = await container.read("s", offset=0, length_max=2)
    assert not part.end_of_segment
    end = await container.read("s", offset=3, length_max=9)
    assert (end.data, end.end_of_segment) == (b"", True)
    with pytest.raises(InvalidRequestError):
        await container.read("s", offset=4, length_max=9)


# ---- Order among operations ----------------------------------------------------------------------


async def test_waiting_for_operations_in_flight_sees_all_of_them(
    container: SegmentContainer,
) -> None:
    await container.create_segment("s")
    answers = Answers()
    for number in range(20):
        previous = number - 1 if number else NULL_ATTRIBUTE_VALUE
        container.append_nowait(
            "s",
            b"x",
            attribute_updates=[compare_and_set(WRITER, number, previous)],
            on_complete=answers.expect(str(number)),
        )
    await container.wait_in_flight("s")
    assert len(answers.all) == 20
    assert await attribute(container, "s", WRITER) == 19


async def test_waiting_with_nothing_in_flight_returns(container: SegmentContainer) -> None:
    await container.create_segment("s")
    with trio.fail_after(60):
        await container.wait_in_flight("s")


async def test_operations_of_many_segments_do_not_mix(container: SegmentContainer) -> None:
    names = [f"s{number}" for number in range(10)]
    for name in names:
        await container.create_segment(name)
    answers = Answers()
    for turn in range(10):
        for name in names:
            data = f"{name}:{turn};".encode()
            container.append_nowait(name, data, on_complete=answers.expect(name))
    await answers.wait(100)
    for name in names:
        expected = "".join(f"{name}:{turn};" for turn in range(10)).encode()
        assert await read_all(container, name) == expected
