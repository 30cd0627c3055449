"""The journal without threads and without a real disk, for simulations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from _fast.replay import DIGEST_FORMAT, digest_frame
from segstore.testing.simulated_disk import SimulatedDisk
from segstore.tiers.journal import Journal, JournalSettings, open_journal
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.runner import InlineRunner

T = TypeVar("T")


async def run_in_place(function: Callable[[], T]) -> T:
    """Run a blocking function in the event loop's thread."""
    await trio.lowlevel.checkpoint()
    return function()


def open_simulated_journal(
    disk: SimulatedDisk,
    settings: JournalSettings,
    *,
    random: Random | None = None,
    latency_seconds: Callable[[int], float] = lambda _: 0.0,
    notes: SimulatedDisk | None = None,
) -> AbstractAsyncContextManager[Journal]:
    """Open the journal that lies on ``disk``; ``random`` gives the salts of its files.

    Contents of complete files are noted on the disk ``notes``, if there is one.
    """
    random = random or Random(0)
    contents = None
    if notes is not None:
        contents = NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT)
    return open_journal(
        Path(),
        settings,
        digest=digest_frame,
        contents=contents,
        disk=disk,
        runner=InlineRunner(latency_seconds),
        run_blocking=run_in_place,
        clock=trio.current_time,
        new_salt=lambda: random.getrandbits(32),
    )
