"""The requests of a client of key-value tables, and the meaning of their replies, without I/O.

Owns: ``TableSteps``: which segment has a key, pages of entries, and the errors of refused changes.

An operation is a generator, so that a client that blocks and an async one share it: it yields a
``TableRequest``, gets its ``TableReply``, and returns its result.

Invariants:
1. When the answer to an update is lost, the update is tried again; a conditional one that had been
   done already then fails with ``ConflictError``, whose text says so. Held by
   ``test_an_update_whose_answer_is_lost_is_not_called_refused``.
2. When several keys with one primary key are put together, all of them change or none. Held by
   ``test_entries_of_one_primary_key_change_together``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from pravega_wire import commands as wire
from pravega_wire.hashing import table_key_hash
from pravega_wire.key_text import key_after
from pravega_wire.sessions.routes import Routes, SegmentRange
from segstore_client.controller.controller_client import TableSettings
from segstore_client.errors import ConflictError, NotFoundError, RefusedError, UsageError
from segstore_client.inputs import to_bytes

KEYS_MAX: Final = 15
"""Maximum number of keys in one request: the reply has room for this many of the longest values."""
PAGE_ENTRIES: Final = 500
ANY_VERSION: Final = wire.NO_VERSION
"""The condition of an update that has none."""
ABSENT: Final = wire.NOT_EXISTS
"""The condition that there is no entry of the key."""

T = TypeVar("T")
Make: TypeAlias = Callable[[int, str, str], wire.Request]
"""Makes a request of its id, the segment's name and a token."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, primary and secondary one together, with its value and version."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A request to one segment of a table. ``writes`` means that it needs the right to write."""

    segment: int
    make: Make
    writes: bool = False


@dataclass(frozen=True, slots=True)
class TableReply:
    """The reply to a request, and the number of times that the request was sent."""

    reply: wire.Reply
    attempts: int


Steps: TypeAlias = Generator[TableRequest, TableReply, T]


class TableSteps:
    """The operations of one key-value table, by its name, settings and segments.

    Raises ``UsageError`` for a key whose length is wrong.
    """

    def __init__(self, name: str, settings: TableSettings, ranges: Sequence[SegmentRange]) -> None:
        self._name = name
        self._settings = settings
        self._routes = Routes(ranges)

    def segments_between(self, begin: bytes, end: bytes) -> Sequence[int]:
        """Return the ids of the segments that may have keys between two."""
        return self._routes.segments if begin <= end else ()

    @property
    def key_bytes(self) -> int:
        """Return the length of keys, in bytes."""
        return self._settings.primary_key_bytes + self._settings.secondary_key_bytes

    def get_all(self, keys: Sequence[bytes]) -> Steps[list[Entry | None]]:
        """Return the entry of each key, in their order; None for a key that has none."""
        found: dict[bytes, Entry | None] = {}
        by_segment: dict[int, list[bytes]] = {}
        for key in keys:
            by_segment.setdefault(self._segment_of(key), []).append(key)
        for segment, each in by_segment.items():
            for start in range(0, len(each), KEYS_MAX):
                found |= yield from self._read(segment, each[start : start + KEYS_MAX])
        return [found[key] for key in keys]

    def put(self, entries: Mapping[bytes, bytes], version: int) -> Steps[list[int]]:
        """Set the values of keys with one primary key, all or none; return the new versions.

        Raises ``ConflictError`` if one of the keys has another version.
        """
        segments = [self._segment_of(key) for key in entries]
        if len({key[: self._settings.primary_key_bytes] for key in entries}) != 1:
            raise UsageError("keys that change together have one primary key")
        changes = tuple(
            wire.TableEntry(wire.TableKey(key, version), to_bytes(value, "a value"))
            for key, value in entries.items()
        )
        answer = yield TableRequest(
            segments[0],
            lambda i, name, token: wire.UpdateTableEntries(i, name, token, changes),
            writes=True,
        )
        if not isinstance(answer.reply, wire.TableEntriesUpdated):
            raise self._refusal(answer)
        return list(answer.reply.updated_versions)

    def remove(self, key: bytes, version: int) -> Steps[None]:
        """Remove a key. Raises ``ConflictError`` if it has another version."""
        keys = (wire.TableKey(key, version),)
        answer = yield TableRequest(
            self._segment_of(key),
            lambda i, name, token: wire.RemoveTableKeys(i, name, token, keys),
            writes=True,
        )
        if not isinstance(answer.reply, wire.TableKeysRemoved):
            raise self._refusal(answer)

    def bounds(self, first: bytes, last: bytes) -> tuple[bytes, bytes]:
        """Return the first and last key of an iteration, by those that a caller gave, if any."""
        begin, end = first or bytes(self.key_bytes), last or b"\xff" * self.key_bytes
        self._check_key(begin)
        self._check_key(end)
        return begin, end

    def read_page(self, segment: int, begin: bytes, end: bytes) -> Steps[tuple[list[Entry], bytes]]:
        """Return a page of the entries of one segment in the order of their keys, and the key at
        which the next page begins; it is empty behind the last page."""
        args = wire.TableIteratorArgs(from_key=begin, to_key=end)
        answer = yield TableRequest(
            segment,
            lambda i, name, token: wire.ReadTableEntries(i, name, token, PAGE_ENTRIES, args),
        )
        if not isinstance(answer.reply, wire.TableEntriesRead):
            raise self._refusal(answer)
        page = [
            Entry(bytes(each.key.key), bytes(each.value), each.key.version)
            for each in answer.reply.entries
        ]
        following = key_after(page[-1].key) if page else b""
        return page, following if following <= end else b""

    def _read(self, segment: int, keys: Sequence[bytes]) -> Steps[dict[bytes, Entry | None]]:
        wanted = tuple(map(wire.TableKey, keys))
        answer = yield TableRequest(
            segment, lambda i, name, token: wire.ReadTable(i, name, token, wanted)
        )
        reply = answer.reply
        if not isinstance(reply, wire.TableRead) or len(reply.entries) != len(keys):
            raise self._refusal(answer)
        return {
            key: None
            if each.key.version == ABSENT
            else Entry(key, bytes(each.value), each.key.version)
            for key, each in zip(keys, reply.entries, strict=True)
        }

    def _refusal(self, answer: TableReply) -> Exception:
        reply = answer.reply
        if isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            what = "has another version"
            if isinstance(reply, wire.TableKeyDoesNotExist):
                what = "does not exist"
            known = "; an answer was lost, so this may be our own update"
            return ConflictError(
                f"the key in {self._name} {what}{known if answer.attempts > 1 else ''}"
            )
        if isinstance(reply, wire.NoSuchSegment):
            return NotFoundError(f"key-value table {self._name} does not exist")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(f"the segment store refused it: {reply.message}")
        return RefusedError(f"the segment store answers with {type(reply).__name__}")

    def _segment_of(self, key: bytes) -> int:
        self._check_key(key)
        return self._routes.find(table_key_hash(key[: self._settings.primary_key_bytes]))

    def _check_key(self, key: bytes) -> None:
        to_bytes(key, "a key")
        if len(key) != self.key_bytes:
            raise UsageError(f"a key of {self._name} has {self.key_bytes} bytes, not {len(key)}")
