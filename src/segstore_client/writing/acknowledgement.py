"""The object that a program awaits after it has handed an event to a writer.

Owns: ``Acknowledgement``. Events that gather in one batch are stored together, and have one: most
programs hand over many events, and wait for the last one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import anyio


class Acknowledgement:
    """Await it: that returns when the event is stored, or raises the error of the writer.

    The event may have it in common with those that were handed over soon before or after it; then
    all of them are stored.
    """

    __slots__ = ("_error", "_event", "is_done", "unstored")

    def __init__(self) -> None:
        self.is_done = False
        """True when the event is stored, or will not be stored by this writer."""
        self.unstored = 0
        """Number of its events that are not known to be stored."""
        self._error: Exception | None = None
        self._event: anyio.Event | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    def note_stored(self, count: int) -> None:
        """Count ``count`` events as stored; after the last one, wake the tasks that wait."""
        self.unstored -= count
        if not self.unstored:
            self.complete()

    def complete(self, error: Exception | None = None) -> None:
        """Wake those who wait; with an error the event is not known to be stored."""
        self.is_done = True
        self._error = error
        if self._event is not None:
            self._event.set()

    async def _wait(self) -> None:
        if not self.is_done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self._error is not None:
            # One error ends many events: a traceback of its own for each that is waited for.
            raise type(self._error)(*self._error.args) from self._error
