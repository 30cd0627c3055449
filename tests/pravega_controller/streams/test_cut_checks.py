"""Stream cuts that come from outside: the same answer for truncations, groups and subscribers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    EarlierStreamError,
    InvalidStreamCutError,
)
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import names

GROUP_ID = "11111111-2222-3333-4444-555555555555"
HALVES = [(0.0, 0.5), (0.5, 1.0)]
Cut = dict[int, int]


@dataclass
class Scene:
    """One stream, whose segments are ten bytes long once they are filled."""

    controller: Controller
    memory: MemorySegmentStore

    async def truncate(self, cut: Cut) -> None:
        await self.controller.streams.truncate("s", "a", cut)

    async def head(self) -> Cut:
        return await self.controller.streams.head("s", "a")

    async def scale(self, *ranges: tuple[float, float]) -> list[int]:
        """Fill all segments and replace them; return the new ones."""
        streams = self.controller.streams
        sealed = [each.segment_id for each in await streams.active_segments("s", "a")]
        self.fill(sealed)
        started = await streams.scale("s", "a", sealed, list(ranges), now_ms=5)
        await streams.workflows.work.finish("s", "a")
        return [each.segment_id for each in started.created]

    def fill(self, segments: list[int]) -> None:
        for each in segments:
            self.segment(each).length = 10

    def segment(self, segment_id: int) -> Any:
        return self.memory.segments[names.segment_name("s", "a", segment_id)]

    async def refusal(self, cut: Cut) -> str:
        """Return the sentence with which a truncation, a question and two groups refuse a cut."""
        head = await self.head()
        sentences = set()
        for ask in (
            self.truncate,
            lambda cut: self.controller.streams.check_cut("s", "a", cut),
        ):
            with pytest.raises(InvalidStreamCutError) as caught:
                await ask(cut)
            sentences.add(str(caught.value))
        for bounds in ({"starts": cut}, {"ends": cut}):
            with pytest.raises(InvalidStreamCutError) as caught:
                await self.make_group(**bounds)
            sentences.add(str(caught.value).removeprefix("no cut of stream s/a: "))
        assert await self.head() == head
        assert len(sentences) == 1
        return sentences.pop()

    async def make_group(self, name: str = "g", **bounds: Any) -> None:
        configuration = group(**bounds)
        await self.controller.groups.create("s", name, GROUP_ID, configuration)


def group(
    *, starts: Cut | None = None, ends: Cut | None = None, retention_type: int = 0
) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(
        refresh_ms=3000,
        checkpoint_interval_ms=-1,
        outstanding_checkpoints_max=3,
        retention_type=retention_type,
        starting_cuts=(NamedCut("s", "a", starts or {}),),
        ending_cuts=(NamedCut("s", "a", ends or {}),),
    )


@pytest.fixture
def open_scene(open_on_memory: Any, memory_store: MemorySegmentStore) -> Any:
    @asynccontextmanager
    async def open_it(count: int = 1) -> AsyncIterator[Scene]:
        async with open_on_memory() as controller:
            await controller.scopes.create("s")
            await controller.streams.create("s", "a", fixed_configuration(count))
            yield Scene(controller, memory_store)

    return open_it


async def test_a_head_never_has_a_negative_offset(open_scene: Any) -> None:
    """New readers saw nothing of a segment at -1: the Java client takes it for read."""
    async with open_scene() as scene:
        scene.fill([0])
        for offset in (-7, -(2**63)):
            assert "is negative" in await scene.refusal({0: offset})
            with pytest.raises(InvalidStreamCutError, match="is negative"):
                await scene.controller.streams.segments_between("s", "a", {0: offset}, {})
        assert "segment 0 is not sealed" in await scene.refusal({0: -1})
        left, right = await scene.scale(*HALVES)
        # These moved the head past their predecessor, which nobody had read.
        assert "is not sealed" in await scene.refusal({left: -1, right: -1})
        assert f"segment {right} is not sealed" in await scene.refusal({left: 0, right: -1})
        assert "is not sealed" in await scene.refusal({0: 5, left: -1, right: -1})
        assert scene.segment(0).start == 0


async def test_a_checkpoint_at_the_end_of_a_sealed_segment_truncates_there(open_scene: Any) -> None:
    """Positions of the Java client name such an end by -1."""
    async with open_scene() as scene:
        left, right = await scene.scale(*HALVES)
        await scene.truncate({0: -1})
        assert await scene.head() == {0: 10}
        assert scene.segment(0).start == 10
        await scene.truncate({left: 0, right: 0})
        # It is gone, but the controller knows where it ended.
        assert await scene.controller.streams.check_cut("s", "a", {0: -1}) == {0: 10}
        with pytest.raises(InvalidStreamCutError, match="lies before the stream's head"):
            await scene.truncate({0: -1})


async def test_a_cut_of_an_earlier_stream_of_the_name_is_told_so(open_scene: Any) -> None:
    """A reader took a segment that the stream never had for the end of a sealed stream."""
    async with open_scene() as scene:
        streams = scene.controller.streams
        old = await scene.scale(*HALVES)
        await streams.seal("s", "a")
        await streams.delete("s", "a")
        await streams.create("s", "a", fixed_configuration(1))
        head = await scene.head()
        present = await scene.scale(*HALVES)
        for each in (0, *old):
            told = f"segment {each} is of an earlier stream s/a, which was deleted before"
            assert (await scene.refusal({each: 0})).startswith(told)
            with pytest.raises(EarlierStreamError, match=told):
                await streams.successors("s", "a", each)
            with pytest.raises(EarlierStreamError, match=told):
                await streams.segments_between("s", "a", {each: 0}, {})
        # These are of this stream, and one that no stream has had belongs to none.
        assert len(await streams.successors("s", "a", *head)) == 2
        assert await streams.successors("s", "a", present[0]) == ()
        strange = names.segment_id(names.segment_number(present[-1]) + 1, 1)
        assert "does not belong to this stream" in await scene.refusal({strange: 0})


async def test_a_cut_of_keys_twice_or_never_or_of_no_segment_is_refused(open_scene: Any) -> None:
    async with open_scene(2) as scene:
        left, right = await scene.scale(*HALVES)
        assert await scene.refusal({0: 1}) == "no segment covers the key 0.5"
        assert (
            await scene.refusal({0: 1, left: 0, right: 0}) == f"segment {left} overlaps another one"
        )
        assert await scene.refusal({0: 1, 7: 0}) == "segment 7 does not belong to this stream"
        assert await scene.refusal({0: 11, 1: 0}) == (
            "offset 11 lies beyond the 10 bytes of segment 0"
        )
        with pytest.raises(InvalidStreamCutError, match="names no segment"):
            await scene.truncate({})


async def test_a_cut_behind_a_segment_for_some_of_its_keys_is_refused(open_scene: Any) -> None:
    """A reader that began there would wait for ever for the rest of the segment."""
    async with open_scene() as scene:
        low, high = await scene.scale(*HALVES)
        [whole] = await scene.scale((0.0, 1.0))
        left, right = await scene.scale(*HALVES)
        sentence = f"the stream cut lies behind segment {whole} for some keys, and not for others"
        assert await scene.refusal({low: 1, right: 0}) == sentence
        assert await scene.refusal({left: 0, high: 10}) == sentence
        await scene.truncate({whole: 3})
        await scene.truncate({left: 0, right: 0})


async def test_cuts_through_epochs_that_never_were_at_a_time_are_fine(open_scene: Any) -> None:
    async with open_scene(2) as scene:
        streams = scene.controller.streams
        scene.fill([0, 1])
        for number, low in ((0, 0.0), (1, 0.5)):
            ranges = [(low, low + 0.25), (low + 0.25, low + 0.5)]
            await streams.scale("s", "a", [number], ranges, now_ms=5)
            await streams.workflows.work.finish("s", "a")
        third, fourth = (2 << 32) + 4, (2 << 32) + 5
        await scene.truncate({0: 5, third: 0, fourth: 0})
        assert await scene.head() == {0: 5, third: 0, fourth: 0}


async def test_a_subscriber_releases_up_to_the_end_of_a_sealed_segment(open_scene: Any) -> None:
    async with open_scene() as scene:
        groups = scene.controller.groups
        await scene.make_group(retention_type=1)

        async def release(cut: Cut) -> None:
            await groups.release(
                "s", "a", subscriber="s/g", group_id=GROUP_ID, generation=0, cut=cut
            )

        with pytest.raises(InvalidStreamCutError, match="not sealed"):
            await release({0: -1})
        await scene.scale(*HALVES)
        await release({0: -1})
        stream = await scene.controller.store.streams.read("s", "a")
        found = await scene.controller.store.subscribers.find(stream, "s/g")
        assert found is not None
        assert found[0].cut == {0: 10}
        for cut, reason in (({0: 9}, "lies before the last one"), ({0: 11}, "lies beyond")):
            with pytest.raises(InvalidStreamCutError, match=reason):
                await release(cut)


async def test_a_group_keeps_its_bounds_as_they_came(open_scene: Any) -> None:
    async with open_scene() as scene:
        left, right = await scene.scale(*HALVES)
        wanted = group(starts={0: -1}, ends={left: 0, right: 0})
        made = await scene.controller.groups.create("s", "g", GROUP_ID, wanted)
        assert made.record.configuration == wanted
        other = group(starts={0: -1}, ends={left: -1, right: 0})
        with pytest.raises(InvalidStreamCutError, match=f"segment {left} is not sealed"):
            await scene.controller.groups.update("s", "g", GROUP_ID, 0, other)
        assert (await scene.controller.groups.get("s", "g")).record == made.record
        # The group that exists is handed out, whatever the caller would have liked.
        again = await scene.controller.groups.create("s", "g", GROUP_ID, other)
        assert again.record == made.record


async def test_a_bounded_group_may_begin_at_a_checkpoint_with_gaps(open_scene: Any) -> None:
    """It drops the segments that it has read to the bound: only the rest is in its checkpoints."""
    async with open_scene(2) as scene:
        scene.fill([0, 1])
        await scene.make_group("bounded", starts={1: 3}, ends={0: 7, 1: 9})
        with pytest.raises(InvalidStreamCutError, match=r"no segment covers the key 0\.0"):
            await scene.make_group("unbounded", starts={1: 3})
        with pytest.raises(InvalidStreamCutError, match=r"no segment covers the key 0\.0"):
            await scene.make_group("unlike", starts={1: 3}, ends={1: 9})


async def test_bounds_of_streams_that_are_gone_stay(open_scene: Any) -> None:
    async with open_scene() as scene:
        lost = structs.replace(group(), starting_cuts=(NamedCut("s", "nope", {0: 5}),))
        made = await scene.controller.groups.create("s", "g", GROUP_ID, lost)
        assert made.record.configuration == lost
