"""Batches as the driver plans them: their limits, and positions that the stream does not have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_spark.errors import DataLossError, OptionError
from pravega_spark.options import Options
from pravega_spark.reading.cuts import Cut, SegmentState, Slice
from pravega_spark.reading.stream_view import StreamView
from pravega_wire.event_framing import frame_event
from support.served_stream import ServedStream, run, serve_stream


class MemoryView(StreamView):
    """A view of segments in memory. It makes no connection."""

    def __init__(self, segments: Mapping[int, bytes], **options: str) -> None:
        super().__init__(Options.parse({"scope": "s", "stream": "t", **options}))
        self._segments = segments

    def _replace_completed(
        self, start: Cut, end: Cut | None
    ) -> tuple[dict[int, int], dict[int, SegmentState]]:
        states = {each: SegmentState(0, len(self._segments[each]), False) for each in start}
        return dict(start), states

    def _read_without_lookahead(
        self, segment: int, start: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        for offset in range(start, end, 100):
            yield offset, self._segments[segment][offset : min(offset + 100, end)]


@pytest.mark.parametrize("limit", [{"max_rows_per_trigger": "2"}, {"max_bytes_per_trigger": "40"}])
def test_short_segments_do_not_starve(limit: dict[str, str]) -> None:
    event = frame_event(b"an event")
    counts = [200, 200, 5, 5]
    segments = {number: event * count for number, count in enumerate(counts)}
    with MemoryView(segments, **limit) as view:
        cut = dict.fromkeys(segments, 0)
        waits = dict.fromkeys(segments, 0)
        for _ in range(20):
            before, cut = cut, view.advance(cut, None, limited=True)
            sizes = {each: cut[each] - before[each] for each in segments}
            assert 0 < sum(sizes.values()) <= 2 * len(event)
            assert not any(size % len(event) for size in sizes.values())
            for each, size in sizes.items():
                is_read = size or cut[each] == len(segments[each])
                waits[each] = 0 if is_read else waits[each] + 1
            assert max(waits.values()) < len(segments)
    assert all(cut[each] == len(segments[each]) for each in (2, 3))


def test_a_batch_is_as_long_as_its_limit() -> None:
    event = frame_event(b"an event")
    segments = {number: event * (50 + number) for number in range(3)}
    with MemoryView(segments, max_rows_per_trigger="20") as view:
        cut = dict.fromkeys(segments, 0)
        while cut != (after := view.advance(cut, None, limited=True)):
            left = sum(len(segments[each]) - cut[each] for each in segments) // len(event)
            rows = sum(after[each] - cut[each] for each in segments) // len(event)
            assert rows == min(20, left)
            cut = after
    assert cut == {each: len(segments[each]) for each in segments}


# ---- A controller and a segment store in this process --------------------------------------------


@pytest.fixture
async def served(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[ServedStream]:
    found = await serve_stream(nursery, tmp_path)
    yield found
    found.client.close()


async def ask(served: ServedStream, question: Callable[[StreamView], Any], **options: str) -> Any:
    """Return the answer of a new view, as that of a query that was started again."""
    named = {"controller": served.address, "scope": "s", "stream": "t", **options}

    def answer() -> Any:
        with StreamView(Options.parse(named)) as view:
            return question(view)

    return await run(answer)


async def read(served: ServedStream, start: Cut, **options: str) -> tuple[Cut, list[Slice]]:
    """Return the end of the next batch of a query, and what the batch reads."""

    def plan(view: StreamView) -> tuple[Cut, list[Slice]]:
        end = view.advance(start, None, limited=False)
        return end, view.planned_slices(start, end)

    found: tuple[Cut, list[Slice]] = await ask(served, plan, **options)
    return found


def whole(slices: list[Slice]) -> dict[int, tuple[int, int]]:
    return {piece.segment_id: (piece.start, piece.end) for piece in slices}


LOSS_IS_ALLOWED = {"fail_on_data_loss": "false"}
EARLIER = "is of an earlier stream of that name: s/t was deleted and made again"


async def test_a_stream_that_was_made_again_is_told_or_read_from_its_head(
    served: ServedStream,
) -> None:
    """It was called truncated, and without ``fail_on_data_loss`` nothing was ever read."""
    await served.make(50)
    head = await ask(served, StreamView.head)
    old, _ = await read(served, head)
    await served.make_again(200)
    tail = await ask(served, StreamView.tail)
    ((segment, length),) = tail.items()
    assert not tail.keys() & old.keys()
    for position in (old, head):
        with pytest.raises(DataLossError, match=f"this checkpoint {EARLIER}"):
            await read(served, position)
        end, slices = await read(served, position, **LOSS_IS_ALLOWED)
        assert (end, whole(slices)) == (tail, {segment: (0, length)})
    # A batch that was planned before, which Spark asks for again.
    with pytest.raises(DataLossError, match=f"this checkpoint {EARLIER}"):
        await ask(served, lambda view: view.planned_slices(head, old))
    assert await ask(served, lambda view: view.planned_slices(head, old), **LOSS_IS_ALLOWED) == []


async def test_a_cut_of_an_earlier_stream_is_told_or_read_from_the_head(
    served: ServedStream,
) -> None:
    await served.make(50)
    old = await ask(served, StreamView.tail)
    text = json.dumps({str(segment): offset for segment, offset in old.items()})
    await served.make_again(200)
    head = await ask(served, StreamView.head)
    option = {"start_stream_cut": text}
    with pytest.raises(DataLossError, match=f"the stream cut {EARLIER}"):
        await ask(served, lambda view: view.start("earliest"), **option)
    start = await ask(served, lambda view: view.start("earliest"), **option, **LOSS_IS_ALLOWED)
    assert start == head
    # Nothing can be read up to there.
    for more in ({}, LOSS_IS_ALLOWED):
        with pytest.raises(OptionError, match="of an earlier stream s/t"):
            await ask(served, lambda view: view.end("latest"), end_stream_cut=text, **more)


async def test_no_loss_is_claimed_where_everything_was_read(served: ServedStream) -> None:
    await served.make(50)
    all_read = await ask(served, StreamView.tail)
    (first,) = all_read
    await served.scale((0.0, 0.5), (0.5, 1.0))
    await served.write(20)
    await served.truncate_at_last_segments()
    tail = await ask(served, StreamView.tail)
    end, slices = await read(served, all_read)
    assert (end, whole(slices)) == (tail, {each: (0, tail[each]) for each in tail if tail[each]})
    # The last event of the segment was not read here.
    for unread in ({first: 0}, {first: all_read[first] - 1}):
        with pytest.raises(DataLossError, match="the stream was truncated before they were read"):
            await read(served, unread)
        assert (await read(served, unread, **LOSS_IS_ALLOWED))[0] == tail
    # A batch between two cuts is the same.
    assert await ask(served, lambda view: view.batch_slices(all_read, tail)) == slices
    with pytest.raises(DataLossError, match="the stream was truncated before they were read"):
        await ask(served, lambda view: view.batch_slices({first: 0}, tail))


async def test_a_position_that_is_not_on_record_is_said_to_be_unknown(
    served: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``fail_on_data_loss`` the query ended with: the stream does not exist."""
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 1)
    await served.make(50)
    old = await ask(served, StreamView.tail)
    await served.scale((0.0, 0.5), (0.5, 1.0))
    await served.scale((0.0, 1.0))
    await served.write(20)
    tail = await ask(served, StreamView.tail)
    await served.truncate_at_last_segments()
    await served.wait_until_dropped(*old)
    for position in (old, dict.fromkeys(old, 0)):
        with pytest.raises(DataLossError, match="is not on record, so it is not known which"):
            await read(served, position)
        with pytest.raises(DataLossError, match="is not on record, so it is not known which"):
            await ask(served, partial(StreamView.batch_slices, start=position, end=tail))
        end, slices = await read(served, position, **LOSS_IS_ALLOWED)
        assert end == tail
        assert whole(slices) == {each: (0, tail[each]) for each in tail}
        found = await ask(
            served, partial(StreamView.batch_slices, start=position, end=tail), **LOSS_IS_ALLOWED
        )
        assert found == slices
