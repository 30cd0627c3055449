"""The lack of space in tier 2, which all containers of a process share.

Owns: ``SpaceLack``. When one container needs space, another one may have the chunks that can be
deleted.
"""

from __future__ import annotations

import trio


class SpaceLack:
    """A flag that is set while tier 2, or the journal on its disk, has no space for a write."""

    def __init__(self) -> None:
        self._begun = trio.Event()

    def begin(self) -> None:
        """Record that a write was refused because there was no space."""
        self._begun.set()

    def end(self) -> None:
        """Record that tier 2 has space for writes again."""
        if self._begun.is_set():
            self._begun = trio.Event()

    @property
    def is_present(self) -> bool:
        """Return whether the last write was refused because there was no space."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Wait until a write is refused because there is no space."""
        await self._begun.wait()
