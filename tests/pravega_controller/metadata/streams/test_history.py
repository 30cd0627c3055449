"""Epochs read from tables as needed, held to the slow model that knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    InvalidStreamCutError,
    NotFoundError,
)
from pravega_controller.metadata.records import EpochRecord, StreamRecord, decode, encode
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.metadata.streams.epochs import is_snapshot_due
from pravega_controller.metadata.streams.history import StreamHistory
from pravega_controller.metadata.streams.used_numbers import NUMBERS
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.history import (
    Epoch,
    apply_epochs,
    duplicate_epoch,
    first_epoch,
    scaled_epoch,
)
from pravega_controller.rules.stream_cuts import END_OFFSET, cut_at, is_before
from pravega_controller.rules.streams import Segment, even_ranges
from pravega_controller.store_client.placement import StaticPlacement
from pravega_controller.store_client.segment_client import open_segment_client
from pravega_controller.store_client.table_client import TableClient
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from support.models.history_model import HistoryModel


def random_model(random: Random, epochs: int, segments: int) -> HistoryModel:
    """Make a history of splits, merges, and now and then a pair of duplicate epochs."""
    model = HistoryModel()
    model.append(first_epoch(even_ranges(segments), first_number=0, created_ms=0))
    latest = model.latest
    while (number := len(model.epochs)) < epochs:
        if random.random() < 0.1 and number + 1 < epochs:
            old = random.randrange(number)
            added = [
                duplicate_epoch(
                    latest, model.segments_in(old), number=number, reference=old, created_ms=1
                )
            ]
            between = apply_epochs(latest, added)
            added.append(
                duplicate_epoch(
                    between, latest, number=number + 1, reference=number - 1, created_ms=1
                )
            )
        else:
            added = [random_scale(random, latest, number, segments + 2)]
        for epoch in added:
            model.append(epoch)
        latest = apply_epochs(latest, added)
    return model


def random_scale(
    random: Random, latest: Sequence[Segment], number: int, segments_max: int
) -> Epoch:
    start = random.randrange(len(latest))
    run = latest[start : start + random.choice((1, 1, 2, 3))]
    low, high = run[0].low, run[-1].high
    middle = (low + high) / 2
    ranges = [(low, high)] if len(latest) > segments_max else [(low, middle), (middle, high)]
    sealed = [segment.segment_id for segment in run]
    return scaled_epoch(latest, sealed, ranges, number=number, created_ms=1)


def random_cut(random: Random, model: HistoryModel) -> dict[int, int]:
    """Draw a cut through random epochs: begin with one epoch, step some segments onward."""
    position = {s.segment_id: 0 for s in model.segments_in(0)}
    eagerness = random.random()
    for epoch in model.epochs[1:]:
        if set(epoch.sealed_ids) <= position.keys() and random.random() < eagerness:
            for segment_id in epoch.sealed_ids:
                del position[segment_id]
            position.update({s.segment_id: 0 for s in epoch.created})
    return {segment_id: random.randint(-1, 3) for segment_id in position}


@asynccontextmanager
async def stored(
    model: HistoryModel,
) -> AsyncIterator[tuple[MemorySegmentStore, Callable[[], StreamHistory]]]:
    """Store the model's epochs in a table.

    Yield it and a function that makes readers without memory.
    """
    memory = MemorySegmentStore()
    async with trio.open_nursery() as nursery:
        await nursery.start(memory.run)
        async with open_segment_client(
            StaticPlacement((("h", 1),), 4),
            open_stream=memory.open_stream,
            random=Random(1),
            reply_seconds_max=5,
            retry_seconds_max=5,
        ) as segments:
            tables = TableClient(segments, random=Random(3))
            await tables.create("t")
            await tables.create(NUMBERS)
            record = await write_all(tables, model)

            def make() -> StreamHistory:
                history = StreamHistory(tables, "t", "id", stream="s/a")
                history.update(record)
                return history

            yield memory, make
        nursery.cancel_scope.cancel()


async def write_all(tables: TableClient, model: HistoryModel) -> StreamRecord:
    base = changed = bytes_max = 0
    latest: Sequence[Segment] = model.epochs[0].created
    writer = StreamHistory(tables, "t", "id", stream="s/a")
    for epoch in model.epochs:
        snapshot = None
        if epoch.number:
            changed += len(epoch.created) + len(epoch.sealed)
            latest = apply_epochs(latest, [epoch])
            if is_snapshot_due(epochs=epoch.number - base, changed=changed, segments=len(latest)):
                base, changed, snapshot = epoch.number, 0, latest
        changes, size = writer.changes_for(EpochRecord(epoch, base), snapshot)
        bytes_max = max(bytes_max, size)
        await tables.update("t", changes)
    count = len(model.epochs)
    record = StreamRecord(0, count - 1, count, 0, base, changed, bytes_max)
    await tables.put("t", writer.state_key, encode(record))
    return record


def run_on(model: HistoryModel, action: Callable[[StreamHistory], Awaitable[None]]) -> None:
    async def main() -> None:
        async with stored(model) as (_, make):
            await action(make())

    trio.run(main)


@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_every_answer_is_the_models(seed: int, epochs: int, segments: int) -> None:
    random = Random(seed)
    model = random_model(random, epochs, segments)

    async def check(history: StreamHistory) -> None:
        for number in range(len(model.epochs)):
            assert await history.segments_in(number) == model.segments_in(number)
            assert await history.epoch(number) == model.epochs[number]
        for segment_id in model.segments:
            assert await history.successors(segment_id) == model.successors(segment_id)
        assert await history.successors(2**40) == ()
        for _ in range(4):
            a, b = random_cut(random, model), random_cut(random, model)
            assert await is_valid(history, a) == model.is_valid(a)
            if not (model.is_valid(a) and model.is_valid(b)):
                continue
            assert await history.is_at_or_after(b, a) == model.is_at_or_after(b, a)
            assert await history.segments_before(b, since={}) == model.segments_before(b, {})
            assert await history.segments_before(b, since=a) == model.segments_before(b, a)
            await check_between(history, model, a, b)
            await check_partly_read(history, model, a, b)
            for cut in (a, b):
                await history.refuse_partly_read(cut)

    run_on(model, check)


async def is_valid(history: StreamHistory, cut: dict[int, int]) -> bool:
    try:
        await history.pieces(cut)
    except InvalidStreamCutError:
        return False
    return True


async def check_partly_read(history: StreamHistory, model: HistoryModel, a: dict, b: dict) -> None:
    """Check a cut that is one up to some key, and another from there."""
    segments = model.segments
    middle = 0.5
    mixed = {i: offset for i, offset in a.items() if segments[i].high <= middle}
    mixed |= {i: offset for i, offset in b.items() if segments[i].low >= middle}
    if not model.is_valid(mixed):
        return
    tiling = stream_cuts.pieces(segments, mixed)
    partly = [s for s in segments.values() if stream_cuts.is_partly_before(s, tiling)]
    if all(is_before(segment, tiling) for segment in partly):
        await history.refuse_partly_read(mixed)
        return
    with pytest.raises(InvalidStreamCutError, match="for some keys"):
        await history.refuse_partly_read(mixed)


async def check_between(history: StreamHistory, model: HistoryModel, a: dict, b: dict) -> None:
    try:
        expected = model.segments_between(a, b)
    except InvalidStreamCutError:
        with pytest.raises(InvalidStreamCutError):
            await history.segments_between(a, b)
    else:
        assert await history.segments_between(a, b) == expected


@given(st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_what_is_forgotten_is_read_again(seed: int) -> None:
    random = Random(seed)
    model = random_model(random, 30, 3)

    async def check(history: StreamHistory) -> None:
        for _ in range(100):
            segment_id = random.choice(list(model.segments))
            assert await history.successors(segment_id) == model.successors(segment_id)
            assert len(history._epochs) <= 12
            assert len(history._sealed_in) <= 40

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_records, "KEPT_SEGMENTS_MAX", 40)
        patch.setattr(epoch_records, "CHUNK_EPOCHS_MAX", 4)
        run_on(model, check)


async def test_a_question_reads_little_of_a_long_history() -> None:
    model = random_model(Random(3), 1500, 4)
    async with stored(model) as (memory, make):

        async def cost(ask: Callable[[StreamHistory], Awaitable[object]]) -> int:
            before = memory.requests
            await ask(make())
            return memory.requests - before

        old = model.epochs[700].sealed_ids[0]
        late = cut_at(model.segments_in(1400))
        later = cut_at(model.segments_in(1403))
        assert await cost(lambda h: h.successors(old)) <= 2
        assert await cost(lambda h: h.segments_in(700)) <= 4
        assert await cost(lambda h: h.pieces(late)) <= 2
        assert await cost(lambda h: h.segments_before(later, since=late)) <= 20
        # The whole history, when that is the answer, comes in large pieces.
        end = cut_at(model.latest, offset=END_OFFSET)
        assert await cost(lambda h: h.segments_between({}, end)) <= 120
        found = await make().segments_between({}, end)
        assert len(found) == len(model.segments)


async def test_an_epoch_that_is_not_counted_is_not_found() -> None:
    model = random_model(Random(3), 5, 2)
    async with stored(model) as (_, make):
        history = make()
        with pytest.raises(NotFoundError):
            await history.epoch(5)
        sealed = model.epochs[4].sealed_ids[0]
        history.count = 4
        assert await history.successors(sealed) == ()
        (created, *_) = model.epochs[4].created
        assert await history.segments([created.segment_id, 0]) == {0: model.segments[0]}


@pytest.mark.parametrize("epochs", [1, 64, 65, 200])
async def test_removal_leaves_nothing_but_the_last_keys(epochs: int) -> None:
    model = random_model(Random(epochs), epochs, 4)
    async with stored(model) as (memory, make):
        keys = await make().remove(keys_max=500)
        assert len(keys) <= 500
        # Broken off and begun anew, it comes to the same end.
        assert set(await make().remove(keys_max=500)) <= set(keys)
        assert memory.tables["t"].entries.keys() <= {*keys, make().state_key}


# ---- Dropping -----------------------------------------------------------------------------------


async def drop(history: StreamHistory, before: int, *, tells: bool = True) -> None:
    """Drop the epochs before one, as another controller would; ``tells`` says it does all of it."""
    other = StreamHistory(history._tables, "t", "id", stream="s/a")
    entry = await history._tables.get("t", history.state_key)
    record = structs.replace(decode(entry.value, StreamRecord), first_epoch=before)
    if tells:
        await history._tables.put("t", history.state_key, encode(record))
    other.update(record)
    assert await other.remove_old(epochs_max=10_000) == before


def is_at_or_after_head(model: HistoryModel, head: dict, segment: Segment) -> bool:
    return not is_before(segment, stream_cuts.pieces(model.segments, head))


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_at_or_after_the_head_is_answered_as_without_dropping(
    seed: int, epochs: int, segments: int, is_warm: bool
) -> None:
    random = Random(seed)
    model = random_model(random, epochs, segments)
    head = random_cut(random, model)
    while not model.is_valid(head):
        head = random_cut(random, model)

    async def check(history: StreamHistory) -> None:
        before = await history.first_needed(head, last=random.randrange(epochs))
        assert before == 0 or len(await history.segments_in(before)) > 0
        if is_warm:
            # It remembers epochs of which there are no records any more.
            await history.segments(model.segments)
        await drop(history, before)
        await check_dropped(history, model, head, before, is_warm=is_warm)
        for _ in range(6):
            a, b = random_cut(random, model), random_cut(random, model)
            if not all(model.is_valid(cut) and model.is_at_or_after(cut, head) for cut in (a, b)):
                continue
            assert await is_valid(history, a)
            assert await history.is_at_or_after(b, a) == model.is_at_or_after(b, a)
            assert await history.segments_before(b, since=head) == model.segments_before(b, head)
            assert await history.segments_before(b, since=a) == model.segments_before(b, a)
            await check_between(history, model, head, b)
            await check_between(history, model, a, b)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 4)
        patch.setattr(epoch_records, "SNAPSHOT_SEGMENTS_MIN", 12)
        run_on(model, check)


async def check_dropped(
    history: StreamHistory, model: HistoryModel, head: dict, before: int, *, is_warm: bool
) -> None:
    """Check that each answer about an epoch or a segment is right, or says that it was dropped.

    What is in memory may be told as long as nothing has shown that it was dropped.
    """
    for number, epoch in enumerate(model.epochs):
        if number >= before:
            assert await history.epoch(number) == epoch
            assert await history.segments_in(number) == model.segments_in(number)
        elif not is_warm:
            for ask in (history.epoch, history.segments_in):
                with pytest.raises(EpochDroppedError):
                    await ask(number)
    for identifier, segment in model.segments.items():
        try:
            found = await history.successors(identifier)
        except EpochDroppedError:
            assert model.sealed_in[identifier] < before
            assert not is_at_or_after_head(model, head, segment)
        else:
            assert found == model.successors(identifier)
        known = await history.segments([identifier])
        assert known in ({}, {identifier: segment})
        assert known or not is_at_or_after_head(model, head, segment)
    assert await history.successors((len(model.epochs) + 3) << 32) == ()
    for cut in (cut_at(model.segments_in(0)), dict.fromkeys(model.segments, 0)):
        if history.first and not cut.keys() <= (await history.segments(cut)).keys():
            with pytest.raises(EpochDroppedError):
                await is_valid(history, cut)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_a_question_that_meets_the_dropping_is_told_so(seed: int) -> None:
    """It has read the stream's record before, and finds nothing where there was something."""
    random = Random(seed)
    model = random_model(random, 60, 3)
    before = 40

    async def check(history: StreamHistory) -> None:
        entry = await history._tables.get("t", history.state_key)
        record = decode(entry.value, StreamRecord)
        base = await history.base_of(before)
        await drop(history, base)
        for identifier in random.sample(sorted(model.segments), 20):
            asked = StreamHistory(history._tables, "t", "id", stream="s/a")
            asked.update(record)
            try:
                assert await asked.successors(identifier) == model.successors(identifier)
            except EpochDroppedError:
                assert model.sealed_in[identifier] < base
        for ask in ("epoch", "segments_in"):
            asked = StreamHistory(history._tables, "t", "id", stream="s/a")
            asked.update(record)
            with pytest.raises(EpochDroppedError):
                await getattr(asked, ask)(base - 1)
        asked = StreamHistory(history._tables, "t", "id", stream="s/a")
        asked.update(record)
        alive = model.segments_in(before)
        assert await asked.segments(model.segments) == {
            identifier: segment
            for identifier, segment in model.segments.items()
            if segment.epoch >= base or segment in model.segments_in(base)
        }
        assert await is_valid(asked, cut_at(alive))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 7)
        run_on(model, check)


async def test_a_record_that_nobody_dropped_is_missing() -> None:
    model = random_model(Random(3), 300, 2)
    async with stored(model) as (_, make):
        await drop(make(), 256, tells=False)
        with pytest.raises(CorruptMetadataError, match="epoch 3 of s/a is missing"):
            await make().epoch(3)


async def test_old_epochs_go_in_steps_that_may_be_repeated() -> None:
    model = random_model(Random(5), 700, 3)
    async with stored(model) as (memory, make):
        history = make()
        history.first = 512
        count = len(memory.tables["t"].entries)
        assert await history.remove_old(epochs_max=100) == 100
        # Killed before it was noted, it is repeated, and then goes on.
        assert await history.remove_old(epochs_max=300) == 300
        history.removed_before = 300
        assert await history.remove_old(epochs_max=300) == 512
        history.removed_before = 512
        assert await history.remove_old(epochs_max=300) == 512
        left = len(memory.tables["t"].entries)
        assert left < count / 3
        assert await history.segments_in(600) == model.segments_in(600)
        # The deletion of the stream takes what is left.
        keys = await history.remove(keys_max=500)
        assert memory.tables["t"].entries.keys() <= {*keys, history.state_key}


async def test_what_goes_on_since_long_ago_keeps_no_epochs() -> None:
    """A segment that was there from the beginning is in the snapshot of the first epoch."""
    model = HistoryModel()
    model.append(first_epoch(even_ranges(2), first_number=0, created_ms=0))
    latest = model.latest
    for number in range(1, 1000):
        sealed = [segment.segment_id for segment in latest if segment.low < 0.5]
        ranges = [(0.0, 0.25), (0.25, 0.5)] if number % 2 else [(0.0, 0.5)]
        epoch = scaled_epoch(latest, sealed, ranges, number=number, created_ms=1)
        model.append(epoch)
        latest = apply_epochs(latest, [epoch])
    async with stored(model) as (memory, make):
        history = make()
        before = await history.first_needed(cut_at(latest), last=999)
        assert before > 700
        await drop(history, before)
        assert len(memory.tables["t"].entries) < 900
        history = make()
        assert await history.segments([1]) == {1: latest[-1]}
        assert await history.successors(1) == ()
        with pytest.raises(EpochDroppedError):
            await history.successors(0)
        assert await is_valid(history, cut_at(latest))


def test_an_epoch_created_and_sealed_is_read_back_whole() -> None:
    model = random_model(Random(9), 12, 4)

    async def check(history: StreamHistory) -> None:
        found = await history.epochs(range(12))
        assert [found[n] for n in range(12)] == model.epochs[:12]
        assert all(isinstance(epoch, Epoch) for epoch in found.values())

    run_on(model, check)
