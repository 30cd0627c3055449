"""Reads and changes the entries of key-value tables, as the Java client does.

Owns: which segment has a key, the retries of requests, and pages of entries.

Invariants:
1. When the answer to an update is lost, the update is tried again; a conditional one that had been
   done already then fails with ``ConflictError``, whose text says so. Held by
   ``test_an_update_whose_answer_is_lost_is_not_called_refused``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pravega_blocking.access.tokens import StoreAccess
from pravega_blocking.backoff import Patience
from pravega_blocking.controller_client import RETRIED_ERRORS, ControllerClient, Purpose
from pravega_blocking.errors import ConflictError, NotFoundError, RefusedError, gave_up
from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.hashing import table_key_hash
from pravega_wire.key_text import key_after
from pravega_wire.names import key_value_table_stream, scoped_name, segment_name
from pravega_wire.sessions.routes import SegmentRange

REPLY_SECONDS = 30.0
PAGE_ENTRIES = 500
ANY_VERSION = wire.NO_VERSION
"""The condition of an update that has none."""
ABSENT = wire.NOT_EXISTS
"""The condition that there is no entry of the key."""

Make = Callable[[int, str, str], wire.Request]
"""Makes a request of its id, the segment's name and a token."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, primary and secondary one together, with its value and version."""

    key: bytes
    value: bytes
    version: int


class TableClient:
    """The entries of one key-value table. Use it in one thread; its calls block."""

    def __init__(
        self, controller: ControllerClient, scope: str, table: str, *, patience: float
    ) -> None:
        self.settings = controller.table_settings(scope, table)
        self._controller = controller
        self._scope = scope
        self._stream = key_value_table_stream(table)
        self._name = scoped_name(scope, table)
        self._patience = Patience(patience)
        # The tokens are for the name in the segments' names. A user who may only read gets no token
        # to write.
        self._read_access = controller.store_access(scope, self._stream, Purpose.READ)
        self._write_access = controller.store_access(scope, self._stream, Purpose.READ_WRITE)
        self._ranges = controller.table_ranges(scope, table)

    @property
    def key_bytes(self) -> int:
        """Return the length of keys, in bytes."""
        return self.settings.primary_key_bytes + self.settings.secondary_key_bytes

    def get(self, key: bytes) -> Entry:
        """Return the entry of a key. Raises ``NotFoundError`` if there is none."""
        wanted = (wire.TableKey(key),)
        _, reply = self._ask(
            self._read_access, key, lambda i, name, token: wire.ReadTable(i, name, token, wanted)
        )
        if not isinstance(reply, wire.TableRead):
            raise table_refusal(reply, self._name)
        (entry,) = reply.entries
        if entry.key.version == ABSENT:
            raise NotFoundError(f"key-value table {self._name} has no entry of this key")
        return Entry(key, bytes(entry.value), entry.key.version)

    def put(self, key: bytes, value: bytes, *, version: int = ANY_VERSION) -> int:
        """Set the value of a key if it has a version; return the new version.

        Raises ``ConflictError`` if it has another one.
        """
        entries = (wire.TableEntry(wire.TableKey(key, version), value),)
        attempts, reply = self._ask(
            self._write_access,
            key,
            lambda i, name, token: wire.UpdateTableEntries(i, name, token, entries),
        )
        if not isinstance(reply, wire.TableEntriesUpdated):
            raise table_refusal(reply, self._name, attempts)
        return reply.updated_versions[0]

    def remove(self, key: bytes, *, version: int = ANY_VERSION) -> None:
        """Remove a key if it has a version; without a condition it need not exist.

        Raises ``ConflictError`` if it has another one.
        """
        keys = (wire.TableKey(key, version),)
        attempts, reply = self._ask(
            self._write_access,
            key,
            lambda i, name, token: wire.RemoveTableKeys(i, name, token, keys),
        )
        if not isinstance(reply, wire.TableKeysRemoved):
            raise table_refusal(reply, self._name, attempts)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, those of each segment in the order of their keys."""
        for item in self._ranges:
            begin = bytes(self.key_bytes)
            while begin:
                page = self._read_page(item, begin)
                yield from page
                begin = key_after(page[-1].key) if page else b""

    def _read_page(self, item: SegmentRange, begin: bytes) -> list[Entry]:
        args = wire.TableIteratorArgs(from_key=begin, to_key=b"\xff" * self.key_bytes)
        _, reply = self._ask_segment(
            self._read_access,
            item.segment_id,
            lambda i, name, token: wire.ReadTableEntries(i, name, token, PAGE_ENTRIES, args),
        )
        if not isinstance(reply, wire.TableEntriesRead):
            raise table_refusal(reply, self._name)
        return [
            Entry(bytes(each.key.key), bytes(each.value), each.key.version)
            for each in reply.entries
        ]

    # ---- Requests --------------------------------------------------------------------------------

    def _ask(self, access: StoreAccess, key: bytes, make: Make) -> tuple[int, wire.Reply]:
        """Ask the segment that has a key; return the number of attempts, and the reply."""
        position = table_key_hash(key[: self.settings.primary_key_bytes])
        for item in self._ranges:
            if position < item.high:
                break
        return self._ask_segment(access, item.segment_id, make)

    def _ask_segment(self, access: StoreAccess, segment: int, make: Make) -> tuple[int, wire.Reply]:
        name = segment_name(self._scope, self._stream, segment)
        attempts = 0
        while True:
            attempts += 1
            try:
                address = self._controller.segment_address(self._scope, self._stream, segment)
                with access.connect(*address, timeout=REPLY_SECONDS) as connection:
                    request = make(connection.next_request_id(), name, access.token())
                    reply = connection.call(request)
                if isinstance(reply, wire.AuthTokenCheckFailed):
                    raise access.refusal(reply, f"no permission for {self._name}")
                if isinstance(reply, wire.WrongHost):
                    raise ProtocolError("the segment is at another store")
                self._patience.renew()
                return attempts, reply
            except RETRIED_ERRORS as error:
                if not self._patience.wait():
                    what = f"{self._name} could not be reached for {self._patience.seconds:g} s"
                    raise gave_up(what, error) from error


def table_refusal(reply: wire.Reply, table: str, attempts: int = 1) -> Exception:
    """Return the error for a reply that is not the result of a request to a table.

    ``attempts`` is the number of times that the request was sent.
    """
    if isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
        what = "has another version"
        if isinstance(reply, wire.TableKeyDoesNotExist):
            what = "does not exist"
        known = "" if attempts == 1 else "; an answer was lost, so this may be our own update"
        return ConflictError(f"the key in {table} {what}{known}")
    if isinstance(reply, wire.NoSuchSegment):
        return NotFoundError(f"key-value table {table} does not exist")
    if isinstance(reply, wire.ErrorMessage):
        return RefusedError(f"the segment store refused it: {reply.message}")
    return RefusedError(f"the segment store answers with {type(reply).__name__}")
