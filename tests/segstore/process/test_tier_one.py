"""A journal through its failures; whole containers on it are in test_container_isolation.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from structlog.testing import capture_logs

from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_one import KeptJournal
from segstore.tiers.journal import Journal, open_journal
from support.log_lines import find_warnings

MIB = 1024 * 1024


async def test_a_start_that_is_cancelled_when_the_journal_is_just_open_ends(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:

        @asynccontextmanager
        async def opening() -> AsyncIterator[Journal]:
            async with open_journal(tmp_path) as journal:
                scope.cancel()
                yield journal

        kept = KeptJournal(0, opening, restart_seconds_min=0.1, restart_seconds_max=1)
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(kept.run)
            finally:
                kept.stop()
    assert scope.cancelled_caught


async def test_a_container_of_a_process_that_is_cancelled_still_writes_its_log(
    tmp_path: Path,
) -> None:
    config = SegmentStoreConfig(data_dir=tmp_path, container_count=1, cache_bytes_max=8 * MIB)
    with trio.CancelScope() as process, capture_logs() as logs:
        async with open_containers(config) as opener, opener(0) as container:
            await container.create_segment("s")
            await container.append("s", bytes(200_000))
            process.cancel()
            await trio.lowlevel.checkpoint()
    assert process.cancelled_caught
    assert find_warnings(logs) == []
    async with open_containers(config) as opener, opener(0) as container:
        info = container.segment_info("s")
        assert (info.length, info.storage_length) == (200_000, 200_000)
        log = container.parts.log  # type: ignore[attr-defined]
        assert log.bytes_since_truncation < 100_000, "the log was truncated at the end"
