"""Many appends at once have the effect that the same appends have one by one."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _fast.cache.streaming_cache import StreamingCache
from _fast.log.data_frame import DataFrame, FrameReader
from _fast.log.operation_pipeline import accept_appends, commit_appends
from segstore.api import ReadResult
from segstore.cache.manager import CacheManager
from segstore.durable_log.committed_state import CommittedState
from segstore.durable_log.memory_log import AppendedRange, MemoryLog
from segstore.durable_log.update_transaction import NO_RECORD, PendingState
from segstore.errors import SegmentError, SegmentStoreError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import (
    AppendOperation,
    MapOperation,
    Operation,
    SealOperation,
    UpdateAttributesOperation,
)
from segstore.read_index.read_index import ReadIndex
from segstore.tiers.memory import MemoryChunkStorage
from support.chunk_owners import next_owner

VERB = AttributeUpdateType
WRITERS = (b"a" * 16, b"b" * 16)
NAMES = ("s", "t", "sealed", "transient", "missing")
FRAME_BYTES = 40_000


class Container:
    """The parts of a container that operations pass, without a log between them."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(1)
        self.pending = PendingState(self.metadata, lambda: 7, lambda name: NO_RECORD)
        self.memory_log = MemoryLog()
        storage = next_owner(MemoryChunkStorage())
        cache_manager = CacheManager(StreamingCache(8 * 1024 * 1024))
        self.read_index = ReadIndex(cache_manager, storage, lambda: 0.0)
        self.state = CommittedState(self.metadata, self.read_index, self.memory_log, lambda: 9)
        self.frame = DataFrame(FRAME_BYTES)
        self.accepted: list[Operation] = []
        self.refused: list[tuple[int, str]] = []
        self.answers: list[tuple[int, object]] = []
        self.woken: list[tuple[int, bytes]] = []
        for operation in (
            MapOperation("s", {WRITERS[0]: 0, EVENT_COUNT: 0}),
            MapOperation("t", {}),
            MapOperation("sealed", {}),
            SealOperation("sealed"),
            MapOperation("transient", {ATTRIBUTE_SEGMENT_TYPE: SegmentType.TRANSIENT}),
        ):
            self.accept_one(-1, operation)
        self.commit()

    def accept_one(self, label: int, operation: Operation) -> None:
        try:
            self.pending.accept(operation)
        except SegmentError as error:
            self.refused.append((label, repr(error)))
            return
        if not operation.put_into(self.frame):
            self.frame = DataFrame(FRAME_BYTES)
            assert operation.put_into(self.frame)
        self.accepted.append(operation)

    def commit_one(self, operation: Operation) -> None:
        self.state.apply(operation)
        self.pending.committed(operation)
        operation.on_complete(None, getattr(operation, "offset", 0) + self.length_of(operation))

    def length_of(self, operation: Operation) -> int:
        return operation.length if isinstance(operation, AppendOperation) else 0

    def accept(self, operations: list[tuple[int, Operation]]) -> None:
        for label, operation in operations:
            self.accept_one(label, operation)

    def commit(self) -> None:
        for operation in self.accepted:
            self.commit_one(operation)
        self.accepted = []

    def park(self, name: str, offset: int) -> None:
        def on_read(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            self.woken.append((offset, b"" if result is None else result.data))

        segment = self.metadata.by_name[name]
        self.read_index.read_nowait(segment, offset=offset, length_max=9, on_complete=on_read)

    def content(self, name: str) -> bytes:
        segment = self.metadata.by_name[name]
        return self.read_index.cached(segment, offset=0, length=segment.length)

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Return the new ranges of each segment, with adjacent ranges joined."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in self.memory_log.remove_all():
            assert isinstance(entry, AppendedRange)
            known = ranges.setdefault(entry.segment_id, [])
            if known and known[-1][1] == entry.offset:
                known[-1] = (known[-1][0], entry.end)
            else:
                known.append((entry.offset, entry.end))
        return ranges


class FastContainer(Container):
    """The same parts; appends take the fast way where they can."""

    fast_count = 0

    def accept(self, operations: list[tuple[int, Operation]]) -> None:
        labels = {id(operation): label for label, operation in operations}
        queue = deque(operation for _, operation in operations)
        while queue:
            before = len(self.accepted)
            accept_appends(queue, self.pending, self.frame, self.accepted, 1024 * 1024)
            self.fast_count += len(self.accepted) - before
            if queue:
                operation = queue.popleft()
                self.accept_one(labels[id(operation)], operation)

    def commit(self) -> None:
        position = 0
        while position < len(self.accepted):
            position = commit_appends(
                self.accepted,
                position,
                self.metadata,
                self.memory_log,
                self.read_index,
                self.pending,
                9,
            )
            if position < len(self.accepted):
                self.commit_one(self.accepted[position])
                position += 1
        self.accepted = []


SMALL = st.integers(-3, 3)
UPDATES = st.lists(
    st.builds(
        AttributeUpdate,
        st.sampled_from([*WRITERS, EVENT_COUNT]),
        st.sampled_from(VERB),
        SMALL | st.sampled_from([2**63 - 1, -(2**63), 2**64]),
        SMALL | st.just(NULL_ATTRIBUTE_VALUE),
    ),
    max_size=3,
)
APPENDS = st.tuples(
    st.sampled_from([*NAMES, "s", "s", "t"]),
    st.sampled_from([0, 1, 7, 100, 5000, 9000, 30_000]),
    UPDATES | st.just([]),
    st.sampled_from([None, None, None, None, 0, 7]),
)
OTHERS = st.tuples(st.sampled_from(["attributes", "seal"]), st.sampled_from(NAMES), UPDATES)
STEPS = st.lists(APPENDS | APPENDS | APPENDS | OTHERS | st.just("commit"), max_size=25)


def make(step: tuple[object, ...], label: int, container: Container) -> Operation:
    def on_complete(error: SegmentStoreError | None, number: int) -> None:
        container.answers.append((label, error or number))

    if step[0] == "attributes":
        return UpdateAttributesOperation(step[1], step[2], on_complete)  # type: ignore[arg-type]
    if step[0] == "seal" and len(step) == 3:
        return SealOperation(step[1], on_complete)  # type: ignore[arg-type]
    name, length, updates, expected_offset = step
    return AppendOperation(
        name,  # type: ignore[arg-type]
        bytes([label % 251]) * length,  # type: ignore[operator]
        updates=updates,  # type: ignore[arg-type]
        expected_offset=expected_offset,  # type: ignore[arg-type]
        on_complete=on_complete,
    )


def run(container: Container, steps: list[object]) -> None:
    waiting: list[tuple[int, Operation]] = []
    for label, step in enumerate([*steps, "commit"]):
        if step == "commit":
            container.accept(waiting)
            container.commit()
            waiting = []
        else:
            assert isinstance(step, tuple)
            waiting.append((label, make(step, label, container)))


def append_that_changes(writer: bytes, number: int) -> tuple[object, ...]:
    return ("t", 0, [AttributeUpdate(writer, VERB.REPLACE, number)], None)


@settings(max_examples=60)
@given(STEPS)
@example([append_that_changes(WRITERS[0], 1), ("t", 0, [], None)])
@example([append_that_changes(WRITERS[n % 2], n) for n in range(5)])
def test_appends_at_once_do_what_they_do_one_by_one(steps: list[object]) -> None:
    plain, fast = Container(), FastContainer()
    for container in (plain, fast):
        for offset in (0, 1, 50, 200):
            container.park("s", offset)
        run(container, steps)
    assert fast.refused == plain.refused
    assert fast.answers == plain.answers
    assert bytes(fast.frame.seal()) == bytes(plain.frame.seal())
    assert fast.metadata.snapshot(1) == plain.metadata.snapshot(1)
    for name in ("s", "t"):
        dirty = [each.metadata.by_name[name].attribute_memory.dirty for each in (plain, fast)]
        assert dirty[0] == dirty[1]
    assert fast.metadata.sequence_number == plain.metadata.sequence_number
    assert fast.pending.last_sequence_number == plain.pending.last_sequence_number
    assert fast.pending.segments == {}
    for name in ("s", "t"):
        assert fast.content(name) == plain.content(name)
    assert fast.ranges() == plain.ranges()
    assert [offset for offset, _ in fast.woken] == [offset for offset, _ in plain.woken]
    content = fast.content("s")
    assert all(content[offset:].startswith(data) for offset, data in fast.woken)
    assert [not data for _, data in fast.woken] == [not data for _, data in plain.woken]


def usual(container: Container, label: int, *, number: int, previous: int) -> Operation:
    updates = [
        AttributeUpdate(WRITERS[0], VERB.REPLACE_IF_EQUALS, number, previous),
        AttributeUpdate(EVENT_COUNT, VERB.ACCUMULATE, 3),
    ]
    return make(("s", 100, updates, None), label, container)


def test_the_usual_append_goes_the_fast_way() -> None:
    container = FastContainer()
    run_one = [(n, usual(container, n, number=n + 1, previous=n)) for n in range(200)]
    container.accept(run_one)
    assert container.fast_count == 200
    container.commit()
    assert container.answers == [(n, 100 * (n + 1)) for n in range(200)]
    values = container.metadata.by_name["s"].attributes
    assert (values[WRITERS[0]], values[EVENT_COUNT]) == (200, 600)
    [entry] = container.memory_log.remove_all()
    assert isinstance(entry, AppendedRange)
    assert (entry.offset, entry.end) == (0, 20_000)
    assert len(FrameReader().feed(container.frame.seal(), 0)) == 5 + 200


def test_a_batch_takes_no_more_blocks_than_it_may() -> None:
    container = FastContainer()
    queue = deque(usual(container, n, number=n + 1, previous=n) for n in range(9))
    accepted: list[Operation] = []
    frame = container.frame
    assert accept_appends(queue, container.pending, frame, accepted, 3 * 4096 + 1) == 3 * 4096
    assert (len(accepted), len(queue)) == (3, 6)
    assert accept_appends(queue, container.pending, frame, accepted, 0) == 0
    assert len(queue) == 6


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_append_that_is_left_in_the_queue_is_as_it_came(position: int) -> None:
    container = FastContainer()
    operations = [usual(container, n, number=n + 1, previous=n) for n in range(3)]
    refused = usual(container, 9, number=77, previous=76)
    assert isinstance(refused, AppendOperation)
    operations.insert(position, refused)
    queue, accepted = deque(operations), list[Operation]()
    accept_appends(queue, container.pending, container.frame, accepted, 1024 * 1024)
    assert (accepted, queue[0]) == (operations[:position], refused)
    assert (refused.segment_id, refused.offset, refused.sequence_number) == (-1, -1, -1)
    assert refused.attribute_values == {}
    assert refused.data


def test_completions_come_in_order_when_segments_alternate() -> None:
    container = FastContainer()
    steps: list[object] = [(name, 10, [], None) for name in ("s", "t", "s", "s", "t") * 5]
    run(container, steps)
    assert [label for label, _ in container.answers] == list(range(25))
    assert len(container.content("s")) == 150
    assert len(container.content("t")) == 100


def test_an_attribute_has_the_number_of_the_append_that_changed_it_in_a_batch() -> None:
    container = FastContainer()
    steps: list[object] = [
        append_that_changes(WRITERS[0], 1),
        append_that_changes(WRITERS[1], 2),
        append_that_changes(WRITERS[0], 3),
        ("t", 5, [], None),
    ]
    before = container.metadata.sequence_number
    run(container, steps)
    dirty = container.metadata.by_name["t"].attribute_memory.dirty
    assert dirty == {WRITERS[0]: before + 3, WRITERS[1]: before + 2}
