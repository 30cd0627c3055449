"""Scopes: their creation, and their deletion with or without contents.

Owns: a scope's phases.

    creating -> active -> deleting -> (gone)     an empty scope; active again if it is not empty
                active -> clearing -> (gone)     a scope and everything in it

Invariants:
1. In every phase but ``active``, nothing new can be made in the scope.
2. A scope is deleted only with its objects table, and that table only while it is empty.
3. A deletion is about one scope, by its id: it deletes nothing of one that was made since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog
from msgspec import structs

from pravega_controller.conflicts import Target, until_unchanged
from pravega_controller.errors import (
    AlreadyExistsError,
    ControllerError,
    InvalidRequestError,
    ScopeNotFoundError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.key_value_tables import OBJECT_KIND as TABLE_KIND
from pravega_controller.key_value_tables import KeyValueTableOperations
from pravega_controller.late_segments import LateSegments
from pravega_controller.locks import WorkflowLocks
from pravega_controller.reader_groups import ReaderGroupOperations
from pravega_controller.records import IntentRecord
from pravega_controller.segment_client import for_each
from pravega_controller.store import (
    GROUP_KIND,
    SCOPE_TABLES_KIND,
    STREAM_KIND,
    MetadataStore,
    Scope,
)
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_wire import names

CONCURRENT_DELETIONS_MAX = 16
"""Maximum number of things of a scope that are deleted at a time."""

log = structlog.get_logger(__name__)


class ScopeOperations:
    """Answers requests about scopes."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamWorkflows,
        groups: ReaderGroupOperations,
        tables: KeyValueTableOperations,
        late: LateSegments,
        *,
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._streams = streams
        self._groups = groups
        self._tables = tables
        self._locks = WorkflowLocks(finish_later)
        self._late = late
        late.register(SCOPE_TABLES_KIND, store.delete_unneeded_tables)

    async def create(self, name: str) -> None:
        """Make a scope. Raises ``InvalidNameError``, ``AlreadyExistsError``."""
        names.validate_scope_name(name)
        await self._refuse_while_clearing(name, AlreadyExistsError)

        async def create() -> None:
            async with self._locks.hold(_intent(name)):
                scope = await self._store.find_scope(name)
                if scope is None:
                    await self._store.intents.put(_intent(name))
                    try:
                        scope = await self._store.insert_scope(name)
                    except VersionConflictError:
                        self._store.intents.remove(_intent(name))
                        raise
                elif scope.record.phase == "creating":
                    await self._late.promise(scope.tables_intent)
                else:
                    raise AlreadyExistsError(f"scope {name} exists")
                await self._finish_creating(scope)

        await until_unchanged(create)

    async def exists(self, name: str) -> bool:
        scope = await self._store.find_scope(name)
        return scope is not None and scope.record.phase != "creating"

    async def delete(self, name: str) -> None:
        """Delete an empty scope. Raises ``ScopeNotFoundError``, ``TableNotEmptyError``."""
        await self._end(name, "deleting", self._delete)

    async def delete_with_contents(self, name: str) -> None:
        """Delete a scope and its contents; ``ScopeNotFoundError`` also during a deletion."""
        await self._end(name, "clearing", self._clear)

    async def _end(self, name: str, phase: str, end: Callable[[Scope], Awaitable[None]]) -> None:
        """Put a scope into a phase of its deletion, and carry that out."""
        await self._refuse_while_clearing(name, ScopeNotFoundError)
        target = Target()

        async def delete() -> None:
            async with self._locks.hold(_intent(name)):
                if (scope := await self._enter(name, phase, target)) is not None:
                    await end(scope)

        await until_unchanged(delete)

    async def finish(self, name: str, _: str = "") -> None:
        """Finish the pending workflow of a scope, if it exists."""
        async with self._locks.hold(_intent(name)):
            scope = await self._store.find_scope(name)
            if scope is None or scope.record.phase == "active":
                self._store.intents.remove(_intent(name))
            elif scope.record.phase == "creating":
                # Another controller may have begun it, and be dead.
                await self._late.promise(scope.tables_intent)
                await self._finish_creating(scope)
            elif scope.record.phase == "clearing":
                await self._clear(scope)
            else:
                try:
                    await self._delete(scope)
                except TableNotEmptyError:
                    log.info("scope is not empty and stays", scope=name)

    async def _refuse_while_clearing(self, name: str, kind: type[ControllerError]) -> None:
        """Raise an error of ``kind`` at once while a deletion, which may take long, runs."""
        scope = await self._store.find_scope(name)
        if scope is not None and scope.record.phase == "clearing":
            raise kind(f"scope {name} is being deleted")

    async def _enter(self, name: str, phase: str, target: Target) -> Scope | None:
        """Return a scope in a phase of its deletion, or None if another controller has ended that.

        Raises ``ScopeNotFoundError`` if there is no active scope, or another one than first.
        """
        if name == names.INTERNAL_SCOPE:
            raise InvalidRequestError(f"scope {name} belongs to the system")
        missing = ScopeNotFoundError(f"scope {name} does not exist")
        scope = await self._store.find_scope(name)
        if scope is None or not target.includes(scope.record.scope_id):
            if scope is None or scope.record.phase == "active":
                self._store.intents.remove(_intent(name))
            if target.is_begun:
                return None
            raise missing
        if target.is_begun and scope.record.phase == phase:
            return scope
        if scope.record.phase != "active":
            raise missing
        await self._store.intents.put(_intent(name))
        scope = await self._change(scope, phase)
        target.is_begun = True
        return scope

    async def _change(self, scope: Scope, phase: str) -> Scope:
        record = structs.replace(scope.record, phase=phase)
        return await self._store.write_scope(scope.name, record, version=scope.version)

    async def _finish_creating(self, scope: Scope) -> None:
        await self._store.create_scope_tables(scope)
        try:
            await self._change(scope, "active")
        except VersionConflictError:
            # Another controller may have finished the creation, and then deleted the scope.
            await self._store.delete_unneeded_tables(scope.tables_intent)
            raise
        self._store.intents.remove(_intent(scope.name))

    async def _delete(self, scope: Scope) -> None:
        try:
            await self._store.delete_scope_tables(scope)
        except TableNotEmptyError:
            await self._change(scope, "active")
            self._store.intents.remove(_intent(scope.name))
            raise
        await self._store.remove_scope(scope)
        self._store.intents.remove(_intent(scope.name))

    async def _clear(self, scope: Scope) -> None:
        """Delete what a scope contains until the scope is empty.

        Things that were being made when the scope closed may still appear meanwhile. What a scope
        that is made since contains stays, though its name is the same.
        """
        while True:
            try:
                groups, streams, tables = await self._list(scope)
            except ScopeNotFoundError:
                # An earlier attempt, or another controller, deleted this table, maybe not all.
                await self._store.delete_scope_tables(scope)
                break
            if not groups and not streams and not tables:
                try:
                    await self._store.delete_scope_tables(scope)
                    break
                except TableNotEmptyError:
                    log.info("something was still being made in the scope", scope=scope.name)
            # A group goes before the streams that it subscribes to; a stream takes its mark along.
            await self._for_each(groups, partial(self._groups.delete_in_any_case, scope))
            await self._for_each(tables, partial(self._tables.delete_in_any_case, scope))
            marked = [name for name in streams if not name.startswith(names.MARK_PREFIX)]
            await self._for_each(marked or streams, partial(self._streams.delete_internal, scope))
        await self._store.remove_scope(scope)
        self._store.intents.remove(_intent(scope.name))

    async def _list(self, scope: Scope) -> list[list[str]]:
        """Return names of reader groups, streams and key-value tables of this very scope."""
        kinds = (GROUP_KIND, STREAM_KIND, TABLE_KIND)
        return [(await self._store.list_objects_of(scope, kind, "")).names for kind in kinds]

    async def _for_each(
        self, found: Iterable[str], delete: Callable[[str], Awaitable[None]]
    ) -> None:
        await for_each(found, delete, limit=CONCURRENT_DELETIONS_MAX)


def _intent(name: str) -> IntentRecord:
    return IntentRecord("scope", name)
