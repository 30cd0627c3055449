"""Epochs read from tables as needed, held to the slow model that knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_controller import stream_history
from pravega_controller.errors import InvalidStreamCutError, NotFoundError
from pravega_controller.history import (
    Epoch,
    apply_epochs,
    duplicate_epoch,
    first_epoch,
    scaled_epoch,
)
from pravega_controller.placement import StaticPlacement
from pravega_controller.records import EpochRecord
from pravega_controller.segment_client import open_segment_client
from pravega_controller.stream_cuts import END_OFFSET, cut_at
from pravega_controller.stream_history import StreamHistory, is_snapshot_due
from pravega_controller.streams import Segment, even_ranges
from pravega_controller.table_client import TableClient
from pravega_controller.testing.history_model import HistoryModel
from pravega_controller.testing.memory_segment_store import MemorySegmentStore


def random_model(random: Random, epochs: int, segments: int) -> HistoryModel:
    """A history of splits, merges, and now and then a pair of duplicate epochs."""
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
    """A cut through random epochs: begin with one epoch, step some segments onward."""
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
    """The model's epochs in a table, and a maker of readers that know nothing."""
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
            tables = TableClient(segments)
            await tables.create("t")
            bytes_max = await write_all(tables, model)

            def make() -> StreamHistory:
                history = StreamHistory(tables, "t", "id", stream="s/a")
                history.count, history.epoch_bytes_max = len(model.epochs), bytes_max
                return history

            yield memory, make
        nursery.cancel_scope.cancel()


async def write_all(tables: TableClient, model: HistoryModel) -> int:
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
    return bytes_max


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
            assert await history.is_valid(a) == model.is_valid(a)
            if not (model.is_valid(a) and model.is_valid(b)):
                continue
            assert await history.is_at_or_after(b, a) == model.is_at_or_after(b, a)
            assert await history.segments_before(b, since={}) == model.segments_before(b, {})
            assert await history.segments_before(b, since=a) == model.segments_before(b, a)
            await check_between(history, model, a, b)

    run_on(model, check)


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
        patch.setattr(stream_history, "KEPT_SEGMENTS_MAX", 40)
        patch.setattr(stream_history, "CHUNK_EPOCHS_MAX", 4)
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
        assert await cost(lambda h: h.is_valid(late)) <= 2
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
        assert memory.tables["t"].entries.keys() <= set(keys)


def test_an_epoch_created_and_sealed_is_read_back_whole() -> None:
    model = random_model(Random(9), 12, 4)

    async def check(history: StreamHistory) -> None:
        found = await history.epochs(range(12))
        assert [found[n] for n in range(12)] == model.epochs[:12]
        assert all(isinstance(epoch, Epoch) for epoch in found.values())

    run_on(model, check)
