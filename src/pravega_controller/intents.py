"""Intents: which scopes, streams and groups may have a workflow to finish if this controller dies.

Owns: the table of intents, and when an intent is written and removed.

Invariants:
1. An intent is durable before its workflow is, and stays at least until the workflow has ended.
2. An intent is a promise to look, not a lock: one that is left over costs a look, nothing else.
   So it outlives its workflow by a while, in which the next workflow of the same thing finds it
   already written, and many are removed by one request.
3. A removal that is under way has ended before the same intent is written again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog
import trio

from pravega_controller.errors import CorruptMetadataError, SegmentStoreError, StoreUnavailableError
from pravega_controller.records import IntentRecord, decode, encode
from pravega_controller.table_client import TableClient
from pravega_wire import names

INTENTS = names.table_name(names.INTERNAL_SCOPE, "controller", "intents")
IDLE_SECONDS = 1.0
"""Keep an intent for so long after its workflow has ended."""

log = structlog.get_logger(__name__)


class Intents:
    """The intents of one controller."""

    def __init__(self, tables: TableClient) -> None:
        self._tables = tables
        self._written: dict[bytes, IntentRecord] = {}
        self._idle_since: dict[bytes, float] = {}
        self._leaving: frozenset[bytes] = frozenset()
        self._left = trio.Event()

    async def put(self, intent: IntentRecord) -> None:
        """Record that a workflow may be in progress, before it is."""
        key = _key(intent)
        self._idle_since.pop(key, None)
        while key in self._leaving:
            await self._left.wait()
        written = self._written.pop(key, None)
        if written is not None and set(intent.stream_ids) <= set(written.stream_ids):
            self._written[key] = written
        else:
            await self._tables.put(INTENTS, key, encode(intent))
            self._written[key] = intent

    def remove(self, intent: IntentRecord) -> None:
        """Let an intent go some time soon: nothing is in progress any more."""
        key = _key(intent)
        self._written.setdefault(key, intent)
        self._idle_since[key] = trio.current_time()

    async def find(self, intent: IntentRecord) -> IntentRecord:
        """What is recorded under the key of an intent, or the intent itself."""
        key = _key(intent)
        if (written := self._written.get(key)) is not None:
            return written
        entry = await self._tables.get(INTENTS, key)
        return intent if entry is None else decode(entry.value, IntentRecord)

    async def read_all(self) -> AsyncIterator[IntentRecord]:
        """Everything that may have a workflow to finish, as far as it can be read."""
        async for entries in self._tables.pages(INTENTS):
            for entry in entries:
                try:
                    intent = decode(entry.value, IntentRecord)
                except CorruptMetadataError as error:
                    log.error("intent is damaged", key=entry.key.decode(), reason=str(error))
                    continue
                yield intent

    async def remove_idle(self) -> None:
        """Remove what has been idle for long enough; runs until cancelled."""
        while True:
            await trio.sleep(IDLE_SECONDS)
            before = trio.current_time() - IDLE_SECONDS / 2
            keys = [key for key, since in self._idle_since.items() if since <= before]
            if keys:
                await self._remove(keys)

    async def _remove(self, keys: list[bytes]) -> None:
        self._leaving = frozenset(keys)
        self._left = trio.Event()
        for key in keys:
            self._written.pop(key, None)
            del self._idle_since[key]
        try:
            await self._tables.remove_all(INTENTS, keys)
        except (StoreUnavailableError, SegmentStoreError) as error:
            # They may be there or not: both are fine.
            log.info("intents were not removed", reason=str(error), count=len(keys))
        finally:
            self._leaving = frozenset()
            self._left.set()


def _key(intent: IntentRecord) -> bytes:
    return f"{intent.kind}/{intent.scope}/{intent.name}".encode()
