"""A journal through its failures; whole containers on it are in test_container_isolation.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from segstore.process.tier_one import KeptJournal
from segstore.tiers.journal import Journal, open_journal


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
