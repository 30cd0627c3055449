"""Events of keys, as a program hands them over to a writer or a transaction.

Owns: the bytes of each event, and its position in the key space.
"""

from __future__ import annotations

import random
from typing import Generic

from pravega_wire.sessions.append_session import BUFFER_BYTES
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.delays import OnDelay
from segstore_client.inputs import to_position
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.writing.acknowledgement import Acknowledgement
from segstore_client.writing.buffered_writer import BufferedWriter


class KeyedWriter(BufferedWriter, Generic[T]):
    """Writes events to segments of one stream, by their keys."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        patience: float = PATIENCE_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> None:
        super().__init__(
            controller,
            scope,
            stream,
            patience=patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )
        self._encode = serializer.encoder

    async def write(self, data: T, *, key: str | None = None) -> None:
        """Write an event; return when it is stored. Events of one key are stored in order.

        Raises ``UsageError`` for an event that is too long, or has no bytes, ``StreamSealedError``
        when the stream has been sealed, ``UnavailableError`` when servers are unreachable for too
        long. When it is cancelled, the event may be stored or not.
        """
        await (await self.submit(data, key=key))

    async def submit(self, data: T, *, key: str | None = None) -> Acknowledgement:
        """Queue an event as soon as there is room for it; return what to await for its storage.

        Raises errors as ``write``. When it is cancelled, the event is not queued.
        """
        return await self._submit(self._encode(data), _position_of(key))

    def write_nowait(self, data: T, *, key: str | None = None) -> Acknowledgement:
        """Queue an event; return what to await for its storage.

        Raises ``BufferFullError``, an ``anyio.WouldBlock``, when there is no room, and errors as
        ``write``.
        """
        return self._submit_nowait(self._encode(data), _position_of(key))


def _position_of(key: str | None) -> float:
    return random.random() if key is None else to_position(key)
