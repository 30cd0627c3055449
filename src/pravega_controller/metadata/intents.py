"""Intents: notes of the objects whose workflows must be finished if a controller dies.

Owns: the table of intents, the times at which an intent is written and removed, and taking over the
intents of other controllers.

    _system/_tables/controller/intents    instance id/kind/scope/name -> IntentRecord

An intent is a note, and not a lock. If its workflow has ended already, a controller that finds the
intent reads the object, and does nothing. So an intent may be kept for a short time after its
workflow: the next workflow of the same object finds it written, and one request removes many
intents. Two updates of the stream ``demo/orders``, for example, by the controller ``c1``:

    0.0 s   update 1 begins       c1/stream/demo/orders is written, then the workflow is recorded
    0.3 s   update 1 has ended    the intent is idle
    0.6 s   update 2 begins       the intent is in use again; nothing is written
    0.9 s   update 2 has ended    the intent is idle
    2.0 s   a round of removal    the intent has been idle for ``IDLE_SECONDS`` / 2, and is removed

Invariants:
1. When a controller dies at any step of a workflow, its intent is stored, so that another
   controller finishes the workflow.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
2. When a removal that was given up reaches the store late, it does not remove an intent that was
   written after it: a removal names the version.
   Held by ``test_a_late_removal_of_an_intent_leaves_the_one_that_was_written_after_it``.
3. When a controller was taken for dead by mistake, and writes its intents again, these stay.
   Held by ``test_nobody_removes_the_intents_of_a_controller_that_lives_again``.
4. When a write or a removal of an intent fails, and is carried out late, the intent does not stay.
   Held by ``test_one_whose_write_or_removal_fails_does_not_stay``.
5. When a controller takes over an intent that it also has itself, and that was about to be removed,
   the intent stays. Held by ``test_one_that_was_idle_here_stays_when_it_is_taken_over``.
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
from pravega_controller.metadata.records import IntentRecord, decode, encode
from pravega_controller.store_client.table_client import Change, Entry, TableClient
from pravega_wire import names

INTENTS = names.table_name(names.INTERNAL_SCOPE, "controller", "intents")
IDLE_SECONDS = 1.0
"""Time, in seconds, for which an intent is kept after its workflow has ended."""
TAKEN_TOGETHER = 500
TAKEN_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size, in bytes, of the intents in one request. A larger intent has its own request."""

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
        self._doubtful: set[bytes] = set()
        """Keys of intents of which a write or a removal has failed: it may be carried out yet."""
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
                # The intent is still stored: with its earlier value, or with the new one.
                self._written.setdefault(key, written)
            else:
                self._doubtful.add(key)
            raise
        # Another task may have marked the intent as idle meanwhile, but this caller uses it.
        self._idle_since.pop(key, None)
        self._written[key] = _Written(merged, version)

    def remove(self, intent: IntentRecord) -> None:
        """Mark an intent, whose workflow has ended, to be removed some time later."""
        key = self._key(intent)
        if key in self._written:
            self._idle_since[key] = trio.current_time()

    def left_over(self) -> list[IntentRecord]:
        """Return the intents that were in use at the last call and still are.

        The caller must finish their workflows: if another controller has finished a workflow in
        place of this one, nothing marks the intent as idle.
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
        # This controller wrote the intent, but did not get the answer.
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
            # While it is idle, a removal at the old version could run at the same time: the new
            # record would then stay for ever.
            was_idle = self._idle_since.pop(key, None) is not None
            try:
                version = await self._tables.put(INTENTS, key, encode(written.intent))
                if self._written.get(key) is written:
                    written = self._written[key] = _Written(written.intent, version)
            finally:
                # If ``put`` has replaced the entry meanwhile, the intent is in use again.
                if was_idle and self._written.get(key) is written:
                    self._idle_since.setdefault(key, trio.current_time())

    async def take_over(self, is_dead: Callable[[str], Awaitable[bool]]) -> list[IntentRecord]:
        """Write the intents of dead controllers as this one's own, and return them."""
        taken: list[IntentRecord] = []
        removed: list[tuple[bytes, int]] = []
        async with aclosing(self._tables.pages(INTENTS)) as pages:
            async for entries in pages:
                for entry in entries:
                    owner, _, _ = entry.key.decode().partition("/")
                    if owner == self._instance_id or not await is_dead(owner):
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
                # An intent of this controller that was idle is in use now.
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
            await self._find_doubtful()

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
                # The reply to a write was lost, so the intent was written a second time, and the
                # first write reached the store after the second one.
                entry = await self._tables.get(INTENTS, key)
                if entry is not None and key not in self._written:
                    self._written[key] = _read(entry)
                    self._idle_since[key] = trio.current_time()
        except ControllerError as error:
            # It does not matter for now whether the intents are still stored.
            self._doubtful.update(key for key, _ in versions)
            log.info("intents were not removed", reason=str(error), count=len(keys))
        finally:
            self._leaving = frozenset()
            self._left.set()

    async def _find_doubtful(self) -> None:
        """Read the intents that may be stored although this controller believes that they are not.

        Those that are found are idle, and are removed in the next round.
        """
        keys = [key for key in self._doubtful if key not in self._written]
        if not keys:
            self._doubtful.clear()
            return
        try:
            entries = await self._tables.get_all(INTENTS, keys)
        except ControllerError as error:
            log.debug("intents not read yet", reason=str(error), count=len(keys))
            return
        self._doubtful.difference_update(keys)
        for key, entry in zip(keys, entries, strict=True):
            # A task that writes it now uses it as soon as it is written.
            if entry is not None and key not in self._written:
                self._written[key] = _read(entry)
                self._idle_since[key] = trio.current_time()

    def _key(self, intent: IntentRecord) -> bytes:
        return f"{self._instance_id}/{intent.kind}/{intent.scope}/{intent.name}".encode()


def _read(entry: Entry) -> _Written:
    return _Written(decode(entry.value, IntentRecord), entry.version)


def _merge(intent: IntentRecord, written: _Written | None) -> IntentRecord:
    """Return an intent with the ids and numbers of itself and of the one stored under its key."""
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
