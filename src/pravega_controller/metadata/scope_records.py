"""The records of scopes, and of what is listed in them.

Owns: ``ScopeRecords``: the table of scopes, the tables of each scope, and the objects under their
names: streams, reader groups, key-value tables.

    _system/_tables/controller/scopes           scope                       -> ScopeRecord
    _system/_tables/controller/objects-<id>     s/<stream>                  -> NameRecord
                                                g/<group>                   -> ReaderGroupRecord
                                                t/<table>                   -> KeyValueTableRecord

Everything in a scope has a key in its objects table. To delete a scope, the controller deletes this
table on the condition that it is empty. That request of the segment store is the decision: before
it, the scope is there for everybody, and after it, for nobody. Whose request it was has deleted the
scope; others find nothing.

| phase      | table of objects | the scope                                                |
|------------|------------------|----------------------------------------------------------|
| (none)     |                  | is not there                                             |
| creating   | maybe            | is not there yet                                         |
| active     | yes              | is there                                                 |
| deleting   | yes              | is there: somebody wanted to delete it, or still wants to |
| deleting   | no               | is not there; what is left of it has to be removed       |
| clearing   | maybe            | is being deleted with its contents; takes no new objects |

Invariants:
1. When a scope contains any object, a request to delete the scope is refused.
   Held by ``test_a_scope_with_a_table_in_it_is_not_empty``.
2. When a request to delete a scope is refused, no other request notices it.
   Held by ``test_a_refused_deletion_of_a_scope_shows_nothing``.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NoSuchTableError,
    ScopeNotFoundError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.metadata.records import IntentRecord, ScopeRecord, decode, encode
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.store_client.table_client import NOT_EXISTS, Deleted, Entry, TableClient
from pravega_wire import names

CACHED_SCOPES_MAX = 10_000
OPEN_PHASES = ("active", "deleting")
"""The phases in which objects may be created. If the table of objects is gone, that is refused."""
SCOPE_TABLES_KIND = "scope-tables"
"""Kind of the intents to delete tables of a scope that late requests may create."""

_TOKEN = "at-"
_END = "end"
"""Token after a listing's last page."""

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

log = structlog.get_logger(__name__)


def table_of_controller(name: str) -> str:
    """Return the name of one of the controller's tables."""
    return names.table_name(names.INTERNAL_SCOPE, "controller", name)


SCOPES = table_of_controller("scopes")


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope as it was read last: its record, and the record's version."""

    name: str
    version: int
    record: ScopeRecord

    @property
    def objects(self) -> str:
        return table_of_controller(f"objects-{self.record.scope_id}")

    @property
    def histories(self) -> str:
        """Return the name of the table that has all records of the scope's streams."""
        return table_of_controller(f"histories-{self.record.scope_id}")

    @property
    def tag_index(self) -> str:
        """Return the name of the table that ``tag_index`` keeps."""
        return table_of_controller(f"tags-{self.record.scope_id}")

    @property
    def tables_intent(self) -> IntentRecord:
        """Return the intent to delete the scope's tables later, if the scope is gone by then."""
        return IntentRecord(SCOPE_TABLES_KIND, self.name, self.record.scope_id)


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of names, and the token for the next one; without names the listing has ended."""

    names: list[str]
    token: str


class ScopeRecords:
    """Reads and writes scopes and their objects. ``new_id`` returns ids that nothing had before."""

    def __init__(self, tables: TableClient, new_id: Callable[[], str]) -> None:
        self._tables = tables
        self._new_id = new_id
        self._known: OrderedDict[str, Scope] = OrderedDict()

    def known(self, name: str) -> Scope | None:
        """Return a scope as it was read or written last, or None if it is not in memory."""
        return self._known.get(name)

    async def find(self, name: str) -> Scope | None:
        """Read and return a scope in any phase; None if there is none."""
        entry = await self._tables.get(SCOPES, name.encode())
        if entry is None:
            self._known.pop(name, None)
            return None
        scope = Scope(name, entry.version, decode(entry.value, ScopeRecord))
        remember(self._known, name, scope, CACHED_SCOPES_MAX)
        return scope

    async def find_active(self, name: str) -> Scope:
        """Return a scope in which objects may be created, or raise ``ScopeNotFoundError``."""
        scope = await self.find(name)
        if scope is None or scope.record.phase not in OPEN_PHASES:
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def is_there(self, scope: Scope) -> bool:
        """Return whether a scope counts as existing, for everybody, in the phase that was read."""
        if scope.record.phase == "deleting":
            return await self._tables.exists(scope.objects)
        return scope.record.phase != "creating"

    async def is_empty(self, scope: Scope) -> bool:
        """Return whether a scope has no objects. Raises ``ScopeNotFoundError``."""
        try:
            return await self._tables.is_empty(scope.objects)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist any more") from error

    async def find_made(self, name: str) -> Scope:
        """Return a scope whose tables exist. Raises ``ScopeNotFoundError``."""
        scope = await self.find(name)
        if scope is None or scope.record.phase == "creating":
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def call_in(self, name: str, action: Callable[[Scope], Awaitable[T]]) -> T:
        """Call ``action`` with a scope that may be cached. Raises ``ScopeNotFoundError``.

        A scope's tables are deleted with the scope, so a stale cached scope cannot lead to wrong
        answers.
        """
        known = self._known.get(name)
        if known is not None and known.record.phase != "creating":
            self._known.move_to_end(name)
            try:
                return await action(known)
            except NoSuchTableError:
                log.debug("the scope was deleted", scope=name)
        found = await self.find_made(name)
        try:
            return await action(found)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {name} does not exist any more") from error

    async def write(self, name: str, record: ScopeRecord, *, version: int) -> Scope:
        """Write a scope's record: insert it (``NOT_EXISTS``), or replace it."""
        self._known.pop(name, None)
        version = await self._tables.put(SCOPES, name.encode(), encode(record), version=version)
        scope = Scope(name, version, record)
        remember(self._known, name, scope, CACHED_SCOPES_MAX)
        return scope

    async def insert(self, name: str) -> Scope:
        """Write a new scope, without tables yet, in the phase ``creating``, and return it.

        Raises ``VersionConflictError``, and ``UncertainConflictError`` if the scope may have been
        written, and another controller has changed it since.
        """
        record = ScopeRecord(self._new_id(), "creating")
        try:
            return await self.write(name, record, version=NOT_EXISTS)
        except UncertainConflictError:
            found = await self.find(name)
            if found is None or found.record.scope_id != record.scope_id:
                raise
            return found

    async def remove(self, scope: Scope) -> None:
        self._known.pop(scope.name, None)
        await self._tables.remove(SCOPES, scope.name.encode(), version=scope.version)

    async def remove_rest(self, scope: Scope) -> None:
        """Remove what is left of a scope whose objects are gone. A later one of its name stays."""
        current: Scope | None = scope
        while current is not None and current.record.scope_id == scope.record.scope_id:
            await self._tables.delete(scope.histories, must_be_empty=False)
            await self._tables.delete(scope.tag_index, must_be_empty=False)
            try:
                await self.remove(current)
            except VersionConflictError:
                current = await self.find(scope.name)
            else:
                return

    async def create_tables(self, scope: Scope) -> None:
        await run_all(
            lambda: self._tables.create(scope.objects),
            lambda: self._tables.create(scope.histories),
        )

    async def delete_objects(self, scope: Scope) -> Deleted:
        """Delete the table of a scope's objects; return whether it was this call that did.

        Raises ``TableNotEmptyError`` if the scope has objects.
        """
        return await self._tables.delete(scope.objects, must_be_empty=True)

    async def delete_tables(self, scope: Scope) -> None:
        """Delete the tables of a scope that is not there for anybody, in any phase."""
        for table in (scope.objects, scope.histories, scope.tag_index):
            await self._tables.delete(table, must_be_empty=False)

    async def delete_unneeded_tables(self, intent: IntentRecord) -> None:
        """Delete the tables of a scope if it is gone: they were created by a late request.

        Also finish its deletion if a late request has decided that.
        """
        current = await self.find(intent.scope)
        if current is None or current.record.scope_id != intent.name:
            await self.delete_tables(
                Scope(intent.scope, NOT_EXISTS, ScopeRecord(intent.name, "deleting"))
            )
        elif current.record.phase == "deleting" and not await self.is_there(current):
            await self.remove_rest(current)

    async def list_page(self, token: str) -> Listing:
        """Return a page of scopes. The system's own is last: some clients use the first one."""

        async def shown(entry: Entry) -> str | None:
            name = entry.key.decode()
            if name == names.INTERNAL_SCOPE:
                return None
            try:
                scope = Scope(name, entry.version, decode(entry.value, ScopeRecord))
            except CorruptMetadataError as error:
                log.error("scope is damaged", scope=name, reason=str(error))
                return name
            return name if await self.is_there(scope) else None

        listing = await self._list(SCOPES, token, shown)
        if token != _END and listing.token == _END:
            return Listing([*listing.names, names.INTERNAL_SCOPE], _END)
        return listing

    async def get_object(self, scope: str, kind: str, name: str) -> tuple[Scope, Entry | None]:
        """Return the entry of an object of a scope, or None. Raises ``ScopeNotFoundError``."""
        key = f"{kind}/{name}".encode()

        async def get(found: Scope) -> tuple[Scope, Entry | None]:
            return found, await self._tables.get(found.objects, key)

        return await self.call_in(scope, get)

    async def put_object(
        self, scope: Scope, kind: str, name: str, value: bytes, *, version: int
    ) -> int:
        """Write an object of a scope if it has this version. Raises ``ScopeNotFoundError``."""
        key = f"{kind}/{name}".encode()
        try:
            return await self._tables.put(scope.objects, key, value, version=version)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist") from error

    async def remove_object(self, scope: Scope, kind: str, name: str, *, version: int) -> None:
        """Remove an object of a scope if it has this version; it is no error if it is gone."""
        await self._tables.remove(scope.objects, f"{kind}/{name}".encode(), version=version)

    async def list_objects(self, scope: str, kind: str, token: str) -> Listing:
        """Return a page of names of a scope's objects of a kind. Raises ``ScopeNotFoundError``."""
        return await self.list_objects_of(await self.find_made(scope), kind, token)

    async def list_objects_of(self, scope: Scope, kind: str, token: str) -> Listing:
        """Return a page like ``list_objects``, for the scope with this id."""

        async def shown(entry: Entry) -> str | None:
            found_kind, _, name = entry.key.decode().partition("/")
            return name if found_kind == kind else None

        return await self._list(scope.objects, token, shown)

    async def objects_page(self, scope: Scope, position: bytes) -> tuple[list[str], bytes]:
        """Return the next objects of a scope of all kinds, as ``kind/name``, and where the rest
        begins: at b"" if there is none. Raises ``ScopeNotFoundError``.
        """
        try:
            page = await self._tables.page(scope.objects, position)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist any more") from error
        return [entry.key.decode() for entry in page.entries], page.token if page.entries else b""

    async def _list(
        self, table: str, token: str, shown: Callable[[Entry], Awaitable[str | None]]
    ) -> Listing:
        """Return the next page with at least one name to show, or the empty page at the end."""
        if token == _END:
            return Listing([], _END)
        position = decode_token(_TOKEN, token)
        while True:
            try:
                page = await self._tables.page(table, position)
            except NoSuchTableError as error:
                raise ScopeNotFoundError("the scope does not exist any more") from error
            names_ = [await shown(entry) for entry in page.entries]
            found = sorted(name for name in names_ if name is not None)
            is_last = not page.entries or not page.token
            if found or is_last:
                return Listing(found, _END if is_last else encode_token(_TOKEN, page.token))
            position = page.token


def remember(cache: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
    """Cache a value as the most recently used one, and evict the least recently used ones."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > count_max:
        cache.popitem(last=False)


def encode_token(prefix: str, position: bytes) -> str:
    """Return a continuation token that resumes at a position; ``prefix`` tells its kind."""
    return prefix + base64.urlsafe_b64encode(position).decode()


def decode_token(prefix: str, token: str) -> bytes:
    """Return the position in a token. Raises ``InvalidRequestError`` for one of another kind."""
    if not token:
        return b""
    try:
        if not token.startswith(prefix):
            raise ValueError("no such prefix")
        return base64.b64decode(token.removeprefix(prefix), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError("the continuation token is not one of this controller") from error
