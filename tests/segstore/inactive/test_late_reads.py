"""Reads of segments that are not active yet are answered, whatever happens meanwhile."""

from __future__ import annotations

from segstore.api import ReadResult
from segstore.errors import SegmentStoreError
from support.faults.crashing_tiers import CrashingTiers, evict


async def test_a_read_of_an_inactive_segment_is_told_that_the_container_has_stopped(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"abc")
        await evict(container)
    answers: list[tuple[SegmentStoreError | None, ReadResult | None]] = []
    container.read_nowait(
        "s", offset=0, length_max=3, on_complete=lambda *answer: answers.append(answer)
    )
    assert answers == [(None, ReadResult(0, b"", True, False))]
