"""Intents: the scopes, streams and groups whose workflows must be finished if a controller dies.

Owns: the table of intents, the times at which an intent is written and removed, and taking over the
intents of other controllers.

    _system/_tables/controller/intents    instance id/kind/scope/name -> IntentRecord

Invariants:
1. An intent is durable before its workflow is, and stays at least until the workflow has ended.
2. An intent is a promise to look, not a lock: a stale one costs a look, nothing else. So an intent
   outlives its workflow by a short time. In this time the next workflow of the same object finds
   it already written. One request then removes many intents.
3. An intent is removed only if it still has the version at which it was written. A removal that was
   given up may reach the store late: it does not remove an intent that was written after it.
4. A controller removes its own intents. It removes the intents of a dead controller only after it
   has written the same ones as its own. If that controller lives after all and has written its
   intents again, they stay. A controller assumes that an intent is still stored only as long as no
   other controller can have taken it for dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import structlog
import trio
from msgspec import structs

from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    VersionConflictError,
)
from pravega_controller.records import IntentRecord, decode, encode
from pravega_controller.table_client import Change, Entry, TableClient
from pravega_wire import names

INTENTS = names.table_name(names.INTERNAL_SCOPE, "controller", "intents")
IDLE_SECONDS = 1.0
"""Time, in seconds, for which an intent is kept after its workflow has ended."""
KEY_PARTS = 4
"""Number of parts of a key: instance, kind, scope and name; the first format had no instance."""
TAKEN_TOGETHER = 500
TAKEN_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size, in bytes, of the intents that are written together, unless one alone is larger."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Written:
    """A stored intent, and the version at which it may be removed."""

    intent: IntentRecord
    version: int


class Intents:
    """The intents of one controller.

    ``is_trusted`` returns whether no other controller can have taken this one for dead.
    """

    def __init__(
        self, tables: TableClient, instance_id: str, *, is_trusted: Callable[[], bool]
    ) -> None:
        self._tables = tables
        self._instance_id = instance_id
        self._is_trusted = is_trusted
        self._written: dict[bytes, _Written] = {}
        self._idle_since: dict[bytes, float] = {}
        self._held_before: frozenset[bytes] = frozenset()
        self._leaving: frozenset[bytes] = frozenset()
        self._left = trio.Event()

    async def put(self, intent: IntentRecord) -> None:
        """Record that a workflow may be in progress, before it begins."""
        key = self._key(intent)
        self._idle_since.pop(key, None)
        while key in self._leaving:
            await self._left.wait()
        written = self._written.pop(key, None)
        merged = _merge(intent, written)
        try:
            if written is None or merged != written.intent or not self._is_trusted():
                version = await self._tables.put(INTENTS, key, encode(merged))
            else:
                version = written.version
        except BaseException:
            if written is not None:
                # It is there still, as it was or as it is now.
                self._written.setdefault(key, written)
            raise
        # Another task may have marked it as idle meanwhile, but the caller uses it.
        self._idle_since.pop(key, None)
        self._written[key] = _Written(merged, version)

    def remove(self, intent: IntentRecord) -> None:
        """Mark an intent, whose workflow has ended, to be removed some time later."""
        key = self._key(intent)
        if key in self._written:
            self._idle_since[key] = trio.current_time()

    def left_over(self) -> list[IntentRecord]:
        """Return the intents that were in use at the last call and still are: finish their work.

        An intent is left when another controller finished the workflow in place of this one.
        """
        held = frozenset(self._written.keys() - self._idle_since.keys())
        old, self._held_before = held & self._held_before, held
        return [written.intent for key, written in self._written.items() if key in old]

    async def find(self, intent: IntentRecord) -> IntentRecord:
        """Return the intent recorded under the same key, or the intent itself."""
        key = self._key(intent)
        if (written := self._written.get(key)) is not None:
            return written.intent
        entry = await self._tables.get(INTENTS, key)
        if entry is None:
            return intent
        # Until now it was unknown whether the intent had been written.
        return self._written.setdefault(key, _read(entry)).intent

    def version_of(self, intent: IntentRecord) -> int | None:
        """Return the version at which this controller wrote the intent of this key last, if any."""
        written = self._written.get(self._key(intent))
        return None if written is None else written.version

    async def write_again(self) -> None:
        """Write all intents again: a controller that took this one for dead has removed some."""
        for key in list(self._written):
            while key in self._leaving:
                await self._left.wait()
            written = self._written.get(key)
            if written is None:
                continue
            # The intent must not be removed during the write: it would then stay for ever.
            was_idle = self._idle_since.pop(key, None) is not None
            try:
                version = await self._tables.put(INTENTS, key, encode(written.intent))
                if self._written.get(key) is written:
                    written = self._written[key] = _Written(written.intent, version)
            finally:
                # Another value under the key means that it is in use again.
                if was_idle and self._written.get(key) is written:
                    self._idle_since.setdefault(key, trio.current_time())

    async def take_over(self, is_dead: Callable[[str], Awaitable[bool]]) -> list[IntentRecord]:
        """Make the intents of dead controllers this one's own, and return them.

        An intent of the first format names no controller; the one that wrote it is dead.
        """
        taken: list[IntentRecord] = []
        removed: list[tuple[bytes, int]] = []
        async with aclosing(self._tables.pages(INTENTS)) as pages:
            async for entries in pages:
                for entry in entries:
                    owner, has_owner, _ = entry.key.decode().partition("/")
                    if len(entry.key.split(b"/")) < KEY_PARTS:
                        owner = ""
                    if (
                        not has_owner
                        or owner == self._instance_id
                        or (owner and not await is_dead(owner))
                    ):
                        continue
                    try:
                        taken.append(decode(entry.value, IntentRecord))
                    except CorruptMetadataError as error:
                        log.error("intent is damaged", key=entry.key.decode(), reason=str(error))
                        continue
                    removed.append((entry.key, entry.version))
        merged: dict[bytes, _Written] = {}
        for intent in taken:
            key = self._key(intent)
            known = merged.get(key) or self._written.get(key)
            merged[key] = _Written(_merge(intent, known), 0)
        for part in _split({key: encode(one.intent) for key, one in merged.items()}):
            versions = await self._tables.update(INTENTS, part)
            for change, version in zip(part, versions, strict=True):
                # One that was idle here is in use now.
                self._idle_since.pop(change.key, None)
                self._written[change.key] = _Written(merged[change.key].intent, version)
        await self._remove_unchanged(removed)
        return [one.intent for one in merged.values()]

    async def _remove_unchanged(self, versions: list[tuple[bytes, int]]) -> list[bytes]:
        """Remove the intents that still have these versions; return the keys of the others."""
        changed: list[bytes] = []
        for start in range(0, len(versions), TAKEN_TOGETHER):
            part = versions[start : start + TAKEN_TOGETHER]
            try:
                await self._tables.remove_if(INTENTS, part)
            except VersionConflictError:
                if len(part) == 1:
                    changed.append(part[0][0])
                    continue
                for one in part:
                    changed += await self._remove_unchanged([one])
        return changed

    async def remove_idle(self) -> None:
        """Remove intents that have been idle for long enough; runs until cancelled."""
        while True:
            await trio.sleep(IDLE_SECONDS)
            before = trio.current_time() - IDLE_SECONDS / 2
            keys = [key for key, since in self._idle_since.items() if since <= before]
            if keys:
                await self._remove(keys)

    async def _remove(self, keys: list[bytes]) -> None:
        self._leaving = frozenset(keys)
        self._left = trio.Event()
        versions: list[tuple[bytes, int]] = []
        for key in keys:
            del self._idle_since[key]
            if (written := self._written.pop(key, None)) is not None:
                versions.append((key, written.version))
        try:
            changed = await self._remove_unchanged(versions)
            for key in changed:
                # The first reply was lost, so the intent was written twice. The second write
                # arrived first.
                entry = await self._tables.get(INTENTS, key)
                if entry is not None and key not in self._written:
                    self._written[key] = _read(entry)
                    self._idle_since[key] = trio.current_time()
        except ControllerError as error:
            # The intents may be stored or not: both are correct.
            log.info("intents were not removed", reason=str(error), count=len(keys))
        finally:
            self._leaving = frozenset()
            self._left.set()

    def _key(self, intent: IntentRecord) -> bytes:
        return f"{self._instance_id}/{intent.kind}/{intent.scope}/{intent.name}".encode()


def _read(entry: Entry) -> _Written:
    return _Written(decode(entry.value, IntentRecord), entry.version)


def _merge(intent: IntentRecord, written: _Written | None) -> IntentRecord:
    """Return an intent that also covers what was written under its key."""
    if written is None:
        return intent

    def unite(earlier: Iterable[T], later: Iterable[T]) -> tuple[T, ...]:
        return tuple(dict.fromkeys((*earlier, *later)))

    return structs.replace(
        intent,
        stream_ids=unite(written.intent.stream_ids, intent.stream_ids),
        segment_numbers=unite(written.intent.segment_numbers, intent.segment_numbers),
        segment_ids=unite(written.intent.segment_ids, intent.segment_ids),
    )


def _split(values: Mapping[bytes, bytes]) -> Iterator[list[Change]]:
    """Yield changes in parts that fit a request."""
    part: list[Change] = []
    size = 0
    for key, value in values.items():
        if part and (len(part) == TAKEN_TOGETHER or size + len(value) > TAKEN_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(Change(key, value))
        size += len(value)
    if part:
        yield part
