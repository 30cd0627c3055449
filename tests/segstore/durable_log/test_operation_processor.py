"""Operations become durable, take effect and are answered in the order of the queue."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from contextvars import ContextVar

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from _fast.log.data_frame import DataFrame, FrameReader
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.durable_log.operation_processor import OVERLAPPING_BYTES_MAX
from segstore.durable_log.update_transaction import PendingState
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerOfflineError,
    DataLogCorruptError,
    DataLogError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentStoreError,
)
from segstore.model.attributes import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from segstore.model.operations import AppendOperation, TruncateOperation, decode_operation
from segstore.runtime.reactor import current_reactor
from segstore.tiers.api import (
    LOG_ENTRY_BYTES_MAX,
    Buffer,
    DigestedEntry,
    LogAddress,
    LogEntry,
    OnDurable,
)
from segstore.tiers.memory import MemoryChunkStorage
from support.chunk_owners import next_owner

WRITER = bytes(range(16))
settle = trio.testing.wait_all_tasks_blocked


RUNS_REACTOR: ContextVar[bool] = ContextVar("runs_reactor")


@pytest.fixture(params=["in tasks", "in steps"], autouse=True)
def runs_reactor(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Tell ``opened`` whether to run the reactor: everything here holds for operations that a task
    processes and for those that are processed in steps."""
    is_run = request.param == "in steps"
    token = RUNS_REACTOR.set(is_run)
    yield is_run
    RUNS_REACTOR.reset(token)


class HandLog:
    """A log whose entries become durable when the test says so, or at once until ``held``."""

    epoch = 1
    bytes_since_truncation = 0
    held_bytes = 0
    in_flight_bytes_max = 16 * 1024 * 1024
    owner_proof = None

    def __init__(self, overlapping_entries: int = 1) -> None:
        self.overlapping_entries = overlapping_entries
        self.held = False
        self.broken = False
        self.waiting: deque[tuple[Buffer, bytes, OnDurable]] = deque()
        self.durable: list[bytes] = []

    async def open_log(self, container_id: int) -> HandLog:
        await trio.lowlevel.checkpoint()
        return self

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        await trio.lowlevel.checkpoint()
        for position, data in enumerate(self.durable, 1):
            yield LogEntry(LogAddress(position), data)

    async def read_digests(self) -> AsyncIterator[list[DigestedEntry]]:
        async with aclosing(self.read()) as entries:
            async for entry in entries:
                yield [DigestedEntry(entry.address, None, entry.data)]

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        if self.broken:
            raise ZeroDivisionError("a defect")
        [part] = parts
        assert len(part) <= LOG_ENTRY_BYTES_MAX
        self.waiting.append((part, bytes(part), on_durable))
        if not self.held:
            trio.lowlevel.current_trio_token().run_sync_soon(self.complete)
        return LogAddress(len(self.durable) + len(self.waiting))

    async def truncate(self, address: LogAddress) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def complete(self, error: DataLogError | None = None) -> None:
        """Complete the first waiting entry: it becomes durable with the bytes that it came with."""
        part, data, on_durable = self.waiting.popleft()
        assert part == data
        if error is None:
            self.durable.append(data)
        on_durable(error)

    def records(self) -> list[AppendOperation]:
        """Return the appends in the durable entries."""
        reader = FrameReader()
        operations = [
            decode_operation(record) for data in self.durable for _, record in reader.feed(data, 0)
        ]
        return [each for each in operations if isinstance(each, AppendOperation)]


class Answers:
    """Completions by label, in the order in which they come."""

    def __init__(self) -> None:
        self.all: list[tuple[object, object]] = []

    def of(self, label: object) -> Callable[[SegmentStoreError | None, int], None]:
        def on_complete(error: SegmentStoreError | None, number: int) -> None:
            self.all.append((label, type(error) if error is not None else number))

        return on_complete


@asynccontextmanager
async def opened(
    log: HandLog,
    *,
    cache_bytes: int = 64 << 20,
    cache_manager: CacheManager | None = None,
    now_ms: Callable[[], int] = lambda: 0,
) -> AsyncIterator[Container]:
    storage = next_owner(MemoryChunkStorage())
    cache_manager = cache_manager or CacheManager(StreamingCache(cache_bytes))
    async with AsyncExitStack() as stack:
        if RUNS_REACTOR.get():
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(nursery.cancel_scope.cancel)
            await nursery.start(current_reactor().run)
        container = await stack.enter_async_context(
            open_container(1, log, storage, cache_manager, drain_seconds=0, now_ms=now_ms)
        )
        await container.create_segment("s", attributes={WRITER: 0})
        await container.create_segment("t")
        yield container
        log.held = False
        while log.waiting:
            log.complete()


def usual(number: int) -> tuple[AttributeUpdate, ...]:
    verbs = AttributeUpdateType
    return (
        AttributeUpdate(WRITER, verbs.REPLACE_IF_EQUALS, number + 1, number),
        AttributeUpdate(EVENT_COUNT, verbs.ACCUMULATE, 1),
    )


async def test_nothing_shows_or_is_answered_before_its_frame_is_durable() -> None:
    log, answers = HandLog(), Answers()
    async with opened(log) as container:
        log.held = True
        for number in range(5):
            container.append_nowait(
                "s", b"x" * 10, attribute_updates=usual(number), on_complete=answers.of(number)
            )
        await settle()
        assert len(log.waiting) == 1
        container.append_nowait(
            "s", b"y" * 10, attribute_updates=usual(5), on_complete=answers.of(5)
        )
        await settle()
        # The log is busy with one frame: the next one gathers what comes.
        assert len(log.waiting) == 1
        assert answers.all == []
        assert container.segment_info("s").length == 0
        log.complete()
        assert answers.all == [(n, 10 * (n + 1)) for n in range(5)]
        assert container.segment_info("s").length == 50
        await settle()
        log.complete()
        assert answers.all[-1] == (5, 60)
        values = await container.get_attributes("s", [WRITER, EVENT_COUNT])
        assert values == {WRITER: 6, EVENT_COUNT: 6}


async def test_as_many_frames_overlap_as_the_log_has_time_for() -> None:
    log, answers = HandLog(overlapping_entries=3), Answers()
    async with opened(log) as container:
        log.held = True
        for number in range(6):
            container.append_nowait(
                "s", b"x" * 10, attribute_updates=usual(number), on_complete=answers.of(number)
            )
            await settle()
            assert len(log.waiting) == min(3, number + 1)
        assert answers.all == []
        log.complete()
        assert answers.all == [(0, 10)]
        await settle()
        # What came while three were on their way shares a frame.
        assert len(log.waiting) == 3
        for _ in range(3):
            log.complete()
        assert answers.all == [(n, 10 * (n + 1)) for n in range(6)]
        assert not log.waiting
        assert container.segment_info("s").length == 60


async def test_frames_do_not_overlap_when_much_is_in_flight() -> None:
    log, answers = HandLog(overlapping_entries=3), Answers()
    async with opened(log) as container:
        log.held = True
        for number, length in enumerate([OVERLAPPING_BYTES_MAX, 1, 1]):
            container.append_nowait("s", b"x" * length, on_complete=answers.of(number))
            await settle()
        assert len(log.waiting) == 1
        log.complete()
        await settle()
        assert len(log.waiting) == 1
        log.complete()
        assert [label for label, _ in answers.all] == [0, 1, 2]


async def test_a_checkpoint_waits_for_all_frames_that_overlap() -> None:
    log, answers = HandLog(overlapping_entries=3), Answers()
    async with opened(log) as container:
        log.held = True
        for number in range(2):
            container.append_nowait("s", b"x", on_complete=answers.of(number))
            await settle()
        container._processor.request_checkpoint()
        container.append_nowait("s", b"x", on_complete=answers.of(2))
        await settle()
        assert len(log.waiting) == 2
        log.complete()
        await settle()
        assert len(log.waiting) == 1
        log.complete()
        await settle()
        # The checkpoint, and what waited behind it.
        assert len(log.waiting) == 2
        assert len(answers.all) == 2
        log.complete()
        log.complete()
        assert answers.all == [(number, number + 1) for number in range(3)]


async def test_refusals_are_answered_in_order_and_leave_no_trace() -> None:
    log, answers = HandLog(), Answers()
    async with opened(log) as container:
        log.held = True
        put = container.append_nowait
        put("s", b"a", attribute_updates=usual(0), on_complete=answers.of("first"))
        put("s", b"b", attribute_updates=usual(7), on_complete=answers.of("number"))
        put("s", b"c", expected_offset=5, on_complete=answers.of("offset"))
        put("t", b"d", on_complete=answers.of("other segment"))
        put("nothing", b"e", on_complete=answers.of("missing"))
        put("s", b"f", attribute_updates=usual(1), expected_offset=1, on_complete=answers.of("2nd"))
        await settle()
        assert answers.all == []
        log.complete()
        assert answers.all == [
            ("first", 1),
            ("number", BadAttributeUpdateError),
            ("offset", BadOffsetError),
            ("other segment", 1),
            ("missing", NoSuchSegmentError),
            ("2nd", 2),
        ]
    stored = [(each.segment_id, each.offset, bytes(each.data)) for each in log.records()]
    assert stored == [(1, 0, b"a"), (2, 0, b"d"), (1, 1, b"f")]


async def test_an_append_behind_a_seal_is_refused_behind_its_answer() -> None:
    log, answers = HandLog(), Answers()
    async with opened(log) as container, trio.open_nursery() as nursery:
        log.held = True
        container.append_nowait("s", b"a", on_complete=answers.of("before"))
        nursery.start_soon(container.seal_segment, "s")
        await settle()
        container.append_nowait("s", b"b", on_complete=answers.of("after"))
        await settle()
        while log.waiting:
            log.complete()
            await settle()
        assert answers.all == [("before", 1), ("after", SegmentSealedError)]
        assert container.segment_info("s").length == 1


@pytest.mark.parametrize("length", [1, 5000, 400_000, 3_000_000])
async def test_frames_in_flight_keep_their_bytes_while_others_fill(length: int) -> None:
    log, answers = HandLog(), Answers()
    count = 30 if length < 3_000_000 else 4
    async with opened(log) as container:
        log.held = True
        for number in range(count):
            name = "st"[number % 2]
            data = bytes([number]) * length
            container.append_nowait(name, data, on_complete=answers.of(number))
            if number % 3 == 0:
                await settle()
            if number % 7 == 6:
                log.complete()
        await settle()
        while log.waiting:
            log.complete()
            await settle()
        assert answers.all == [(n, length * (n // 2 + 1)) for n in range(count)]
    records = log.records()
    assert [bytes(each.data) for each in records] == [bytes([n]) * length for n in range(count)]


async def test_what_gathers_behind_a_frame_in_flight_fills_frames() -> None:
    log, answers = HandLog(), Answers()
    async with opened(log) as container:
        log.held = True
        first = len(log.durable)
        for number in range(301):
            container.append_nowait("s", bytes(10_000), on_complete=answers.of(number))
            if number == 0:
                await settle()
        while log.waiting:
            log.complete()
            await settle()
    lengths = [len(each) for each in log.durable[first:]]
    assert 10_000 < lengths[0] < 11_000, "the first had nothing to wait for"
    assert len(lengths) == 4
    assert all(each > 0.9 * LOG_ENTRY_BYTES_MAX for each in lengths[1:-1])
    assert [label for label, _ in answers.all] == list(range(301))


async def test_the_last_change_of_a_segment_is_the_last_append_that_was_taken() -> None:
    log, now = HandLog(), 1000
    async with opened(log, now_ms=lambda: now) as container:
        await container.append("s", b"x")
        now = 2000
        with pytest.raises(BadOffsetError):
            await container.append("s", b"x", expected_offset=100)
        await container.read("s", offset=0, length_max=1)
        assert container.segment_info("s").last_modified_ms == 1000
        await container.append("s", b"x")
        assert container.segment_info("s").last_modified_ms == 2000


async def append_until_the_log_fails(log: HandLog, answers: Answers) -> None:
    async with opened(log) as container:
        log.held = True
        for number in range(3):
            container.append_nowait("s", b"x", on_complete=answers.of(number))
            await settle()
        log.complete(DataLogError("the disk is gone"))
        container.append_nowait("s", b"x", on_complete=answers.of(3))
        await trio.sleep_forever()


@pytest.mark.parametrize("overlapping_entries", [1, 2, 4])
async def test_a_failed_log_write_fails_everything_in_order_and_ends_the_container(
    overlapping_entries: int,
) -> None:
    log, answers = HandLog(overlapping_entries), Answers()
    with pytest.raises(ExceptionGroup) as failure:
        await append_until_the_log_fails(log, answers)
    assert failure.group_contains(DataLogError)
    assert answers.all == [(number, ContainerOfflineError) for number in range(4)]
    assert log.records() == []


async def test_appends_wait_in_the_queue_while_the_cache_is_full() -> None:
    log, answers = HandLog(), Answers()
    async with opened(log, cache_bytes=4 << 20) as container:
        for number in range(100):
            container.append_nowait("s", bytes(100_000), on_complete=answers.of(number))
        with trio.fail_after(30):
            await container.wait_in_flight("s")
        assert answers.all == [(n, 100_000 * (n + 1)) for n in range(100)]


async def test_containers_leave_room_in_the_cache_for_what_others_have_in_flight() -> None:
    logs, answers = [HandLog(), HandLog()], Answers()
    manager = CacheManager(StreamingCache(8 << 20))
    async with (
        opened(logs[0], cache_manager=manager) as first,
        opened(logs[1], cache_manager=manager) as second,
    ):
        logs[0].held = logs[1].held = True
        for number in range(60):
            first.append_nowait("s", bytes(100_000), on_complete=answers.of(("first", number)))
            second.append_nowait("s", bytes(100_000), on_complete=answers.of(("second", number)))
        await settle()
        assert 6 << 20 < manager.in_flight_bytes <= manager.writer_limit_bytes
        for log in logs:
            log.held = False
            while log.waiting:
                log.complete()
        with trio.fail_after(30):
            await first.wait_in_flight("s")
            await second.wait_in_flight("s")
        assert sorted(number for _, number in answers.all) == sorted(
            2 * [100_000 * (number + 1) for number in range(60)]
        )
    assert manager.in_flight_bytes == 0


async def test_what_a_failed_container_had_in_flight_takes_no_room_any_more() -> None:
    log = HandLog()
    manager = CacheManager(StreamingCache(8 << 20))
    with pytest.RaisesGroup(DataLogError, flatten_subgroups=True):
        async with opened(log, cache_manager=manager) as container:
            log.held = True
            for _ in range(60):
                container.append_nowait("s", bytes(100_000), on_complete=Answers().of(""))
            await settle()
            assert manager.in_flight_bytes > 0
            log.complete(DataLogError("the log has failed"))
            await trio.sleep_forever()
    assert manager.in_flight_bytes == 0


async def test_what_is_queued_in_one_step_leaves_in_one_frame(runs_reactor: bool) -> None:
    log, answers = HandLog(), Answers()
    async with opened(log) as container:
        frame_count = len(log.durable)
        log.held = True

        def append() -> None:
            for number in range(5):
                container.append_nowait("s", b"x", on_complete=answers.of(number))
            assert not log.waiting

        current_reactor().run_step(append)
        assert len(log.waiting) == (1 if runs_reactor else 0)
        await settle()
        log.complete()
        assert answers.all == [(number, number + 1) for number in range(5)]
        assert len(log.durable) == frame_count + 1


async def test_a_defect_ends_the_container_and_is_not_lost(runs_reactor: bool) -> None:
    log, answers = HandLog(), Answers()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(log) as container:
            log.broken = True
            container.append_nowait("s", b"x", on_complete=answers.of("append"))
            await trio.sleep_forever()
    assert answers.all == [("append", ContainerOfflineError)]


async def test_a_defect_in_taking_effect_is_the_containers_and_not_its_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = HandLog()
    others_are_told = False

    def defect(operation: object) -> None:
        raise ZeroDivisionError("a defect")

    raised = (ZeroDivisionError, ContainerOfflineError)
    with pytest.RaisesGroup(*raised, flatten_subgroups=True):
        async with opened(log) as container, trio.open_nursery() as nursery:
            monkeypatch.setattr(container.parts.state, "apply", defect)
            log.held = True
            nursery.start_soon(container.create_segment, "u")
            await settle()
            log.complete()
            others_are_told = True
            await trio.sleep_forever()
    assert others_are_told


async def test_a_defect_in_taking_effect_leaves_no_operation_of_its_frame_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, answers = HandLog(), Answers()
    manager = CacheManager(StreamingCache(64 << 20))

    def defect(operation: object) -> None:
        raise ZeroDivisionError("a defect")

    raised = (ZeroDivisionError, ContainerOfflineError)
    with pytest.RaisesGroup(*raised, flatten_subgroups=True):
        async with opened(log, cache_manager=manager) as container, trio.open_nursery() as nursery:
            log.held = True
            container.append_nowait("s", b"x", on_complete=answers.of("alone"))
            await settle()
            container.append_nowait("s", b"y", on_complete=answers.of("before"))
            nursery.start_soon(container.seal_segment, "t")
            await settle()
            container.append_nowait("s", b"z", on_complete=answers.of("behind"))
            await settle()
            monkeypatch.setattr(container.parts.state, "apply", defect)
            log.complete()
            await settle()
            log.complete()
            await trio.sleep_forever()
    offline = ContainerOfflineError
    assert answers.all == [("alone", 1), ("before", 2), ("behind", offline)]
    assert manager.in_flight_bytes == 0


async def test_a_defect_in_an_answer_is_not_answered_twice() -> None:
    log, answers = HandLog(), Answers()

    def defect(error: SegmentStoreError | None, number: int) -> None:
        answers.of("defect")(error, number)
        raise ZeroDivisionError("a defect")

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(log) as container:
            log.held = True
            container.append_nowait("s", b"w", on_complete=answers.of("alone"))
            await settle()
            container.append_nowait("s", b"x", on_complete=answers.of("before"))
            container.append_nowait("s", b"y", on_complete=defect)
            container.append_nowait("s", b"z", on_complete=answers.of("behind"))
            await settle()
            log.complete()
            await settle()
            log.complete()
            await trio.sleep_forever()
    offline = ContainerOfflineError
    assert answers.all == [("alone", 1), ("before", 2), ("defect", 3), ("behind", offline)]


def zero_division(*arguments: object, **named: object) -> bool:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize(
    "place", [(PendingState, "accept"), (TruncateOperation, "encode_body")], ids=str
)
async def test_a_defect_in_taking_up_an_operation_leaves_none_unanswered(
    monkeypatch: pytest.MonkeyPatch, place: tuple[object, str]
) -> None:
    log, answers = HandLog(), Answers()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(log) as container:
            monkeypatch.setattr(*place, zero_division)
            for number in range(3):
                container.parts.processor.enqueue(
                    TruncateOperation("st"[number % 2], 0, answers.of(number))
                )
            await trio.sleep_forever()
    assert answers.all == [(number, ContainerOfflineError) for number in range(3)]


async def test_a_defect_in_what_overtakes_leaves_no_operation_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, answers = HandLog(), Answers()
    room = {"_system/x": False, "s": False}

    def has_room(length: int, *, system: bool = False) -> bool:
        return system and room["_system/x"]

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(log) as container:
            monkeypatch.setattr(container.parts.cache_manager, "has_room", has_room)
            monkeypatch.setattr(container.parts.processor._pending, "accept", zero_division)
            container.append_nowait("s", b"x", on_complete=answers.of("no room"))
            await settle()
            room["_system/x"] = True
            for name in ("s", "t", "u"):
                container.parts.processor.enqueue(TruncateOperation(name, 0, answers.of(name)))
            await trio.sleep_forever()
    assert sorted(answers.all, key=str) == [
        (label, ContainerOfflineError) for label in ("no room", "s", "t", "u")
    ]
    answered = [label for label, _ in answers.all]
    assert answered.index("t") < answered.index("u")


class UnsealableFrame(DataFrame):
    def seal(self) -> memoryview:
        raise ZeroDivisionError("a defect")


async def test_a_defect_in_sealing_a_frame_leaves_nothing_in_it_unanswered() -> None:
    log, answers = HandLog(), Answers()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(log) as container:
            container.parts.processor._frame = UnsealableFrame(4096)
            container.append_nowait("s", b"x", on_complete=answers.of("append"))
            await trio.sleep_forever()
    assert answers.all == [("append", ContainerOfflineError)]


async def test_an_answer_that_fails_as_the_container_stops_leaves_no_other_unanswered() -> None:
    log, answers = HandLog(), Answers()
    reads: list[object] = []
    async with opened(log) as container:
        container.read_nowait("s", offset=0, length_max=1, on_complete=lambda *a: reads.append(a))
        log.held = True
        container.append_nowait("s", b"x", on_complete=answers.of("in flight"))
        container.append_nowait("s", b"x", on_complete=zero_division)
        container.append_nowait("s", b"x", on_complete=answers.of("behind"))
        await settle()
        with pytest.raises(ZeroDivisionError):
            container.close("the test says so")
    assert answers.all == [(label, ContainerOfflineError) for label in ("in flight", "behind")]
    assert len(reads) == 1


async def test_bytes_in_flight_are_bounded() -> None:
    log, answers = HandLog(), Answers()
    log.in_flight_bytes_max = 2 << 20
    async with opened(log) as container:
        log.held = True
        for number in range(100):
            container.append_nowait("s", bytes(100_000), on_complete=answers.of(number))
            await settle()
        in_flight = sum(len(data) for _, data, _ in log.waiting)
        assert log.in_flight_bytes_max <= in_flight < log.in_flight_bytes_max + (2 << 20)
        assert container.parts.processor._queue
        while len(answers.all) < 100:
            log.complete()
            await settle()
    assert answers.all == [(number, 100_000 * (number + 1)) for number in range(100)]


async def test_an_operation_that_is_missing_in_the_log_is_damage() -> None:
    log = HandLog()
    async with opened(log) as container:
        for _ in range(3):
            await container.append("s", b"x")
    del log.durable[-2]
    damaged = pytest.RaisesExc(DataLogCorruptError, match=r"has operation \d+ where \d+ must be")
    with pytest.RaisesGroup(damaged, allow_unwrapped=True, flatten_subgroups=True):
        async with opened(log):
            pass
