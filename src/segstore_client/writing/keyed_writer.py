"""Events of keys, as a program hands them over to a writer or a transaction.

Owns: the position of each event in the key space.
"""

from __future__ import annotations

import random

from segstore_client.inputs import to_event, to_position
from segstore_client.writing.acknowledgement import Acknowledgement
from segstore_client.writing.buffered_writer import BufferedWriter


class KeyedWriter(BufferedWriter):
    """Writes events to segments of one stream, by their keys."""

    async def write(self, data: bytes, *, key: str | None = None) -> None:
        """Write an event; return when it is stored. Events of one key are stored in order.

        Raises ``UsageError`` for an event that is too long, or is no bytes, ``StreamSealedError``
        when the stream has been sealed, ``UnavailableError`` when servers are unreachable for too
        long. When it is cancelled, the event may be stored or not.
        """
        await (await self.submit(data, key=key))

    async def submit(self, data: bytes, *, key: str | None = None) -> Acknowledgement:
        """Queue an event as soon as there is room for it; return what to await for its storage.

        Raises errors as ``write``. When it is cancelled, the event is not queued.
        """
        return await self._submit(to_event(data), _position_of(key))

    def write_nowait(self, data: bytes, *, key: str | None = None) -> Acknowledgement:
        """Queue an event; return what to await for its storage.

        Raises ``BufferFullError``, an ``anyio.WouldBlock``, when there is no room, and errors as
        ``write``.
        """
        return self._submit_nowait(to_event(data), _position_of(key))


def _position_of(key: str | None) -> float:
    return random.random() if key is None else to_position(key)
