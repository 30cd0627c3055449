"""Containers that share a journal do not stand in each other's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.tiers.memory import MemoryChunkStorage
from segstore.writer.flush_policy import FlushPolicy
from support.chunk_owners import next_owner

MIB = 1024 * 1024
FILE_BYTES = 8 * MIB


@pytest.mark.proof
async def test_a_quiet_container_does_not_keep_the_journal_of_a_busy_one(tmp_path: Path) -> None:
    settings = JournalSettings(
        file_bytes=FILE_BYTES,
        journal_bytes_max=16 * FILE_BYTES,
        batch_bytes_max=2 * MIB,
    )
    storage = next_owner(MemoryChunkStorage())
    cache_manager = CacheManager(StreamingCache(64 * MIB))
    async with open_journal(tmp_path, settings) as journal:
        opening = {
            "cache_manager": cache_manager,
            "flush_policy": FlushPolicy(held_bytes_max=3 * FILE_BYTES),
        }
        async with (
            open_container(0, journal, storage, **opening) as quiet,
            open_container(1, journal, storage, **opening) as busy,
        ):
            await quiet.create_segment("q")
            await busy.create_segment("b")
            # Three times what the journal may hold; it stalls for ever if nothing is freed.
            with trio.fail_after(100):
                for _ in range(24):
                    await quiet.append("q", b"a little")
                    for _ in range(16):
                        await busy.append("b", bytes(MIB))
                    await trio.sleep(0.2)
            assert quiet.segment_info("q").length == 24 * 8
            assert busy.segment_info("b").length == 24 * 16 * MIB
            assert len(os.listdir(tmp_path)) <= 16
