"""Scopes: their creation, and their deletion with or without contents.

Owns: a scope's phases.

    creating -> active -> deleting -> (gone)     an empty scope; active again if it is not empty
                active -> clearing -> (gone)     a scope and all in it, also if ``deleting``

Invariants:
1. When a scope is deleted while clients create streams in it, each stream is created before, and
   deleted, or refused. Held by ``test_a_stream_being_made_in_a_scope_that_goes_is_not_lost``.
2. When a deletion is refused because the scope is not empty, the scope can be used as before.
   Held by ``test_a_scope_that_was_not_empty_goes_on``.
3. When another controller finishes a deletion, and a client creates the scope again, the first
   deletion deletes nothing of the new scope: scopes have ids.
   Held by ``test_what_is_made_after_a_deletion_stays``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog
from msgspec import structs

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import (
    AlreadyExistsError,
    ControllerError,
    InvalidRequestError,
    ScopeNotFoundError,
    StepRefusedError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.groups.reader_groups import ReaderGroupOperations
from pravega_controller.metadata.conflicts import Target, until_unchanged
from pravega_controller.metadata.group_records import GROUP_KIND
from pravega_controller.metadata.locks import WorkflowLocks
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.metadata.scope_records import SCOPE_TABLES_KIND, Scope
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.names import STREAM_KIND
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_controller.tables.key_value_tables import OBJECT_KIND as TABLE_KIND
from pravega_controller.tables.key_value_tables import KeyValueTableOperations
from pravega_wire import names

CONCURRENT_DELETIONS_MAX = 16
"""Maximum number of objects of a scope that are deleted at the same time."""

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
        late.register(SCOPE_TABLES_KIND, store.scopes.delete_unneeded_tables)

    async def create(self, name: str) -> None:
        """Create a scope.

        Raises ``InvalidNameError``, ``AlreadyExistsError``, and ``StepRefusedError`` if a segment
        store refuses the tables.
        """
        names.validate_name(name)
        await self._refuse_while_clearing(name, AlreadyExistsError)

        async def create() -> None:
            async with self._locks.hold(_intent(name)):
                scope = await self._store.scopes.find(name)
                if scope is None:
                    await self._store.intents.put(_intent(name))
                    try:
                        scope = await self._store.scopes.insert(name)
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
        scope = await self._store.scopes.find(name)
        return scope is not None and scope.record.phase != "creating"

    async def delete(self, name: str) -> None:
        """Delete an empty scope. Raises ``ScopeNotFoundError``, ``TableNotEmptyError``."""
        await self._end(name, "deleting", self._delete)

    async def delete_with_contents(self, name: str) -> None:
        """Delete a scope and its contents. Raises ``ScopeNotFoundError``.

        If a deletion is recorded already, this call continues it: its controller may have died.
        """
        await self._end(name, "clearing", self._clear)

    async def _end(self, name: str, phase: str, end: Callable[[Scope], Awaitable[None]]) -> None:
        """Put a scope into a phase of its deletion, and call ``end``, which deletes it."""
        if phase != "clearing":
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
            scope = await self._store.scopes.find(name)
            if scope is None or scope.record.phase == "active":
                self._store.intents.remove(_intent(name))
            elif scope.record.phase == "creating":
                try:
                    await self._finish_for_others(scope)
                except StepRefusedError as error:
                    log.error("workflow failed for good", scope=name, reason=str(error))
            elif scope.record.phase == "clearing":
                await self._clear(scope)
            else:
                try:
                    await self._delete(scope)
                except TableNotEmptyError:
                    log.info("scope is not empty and stays", scope=name)

    async def _refuse_while_clearing(self, name: str, kind: type[ControllerError]) -> None:
        """Raise an error of ``kind`` while this controller clears the scope: it may take long."""
        scope = await self._store.scopes.find(name)
        if scope is not None and scope.record.phase == "clearing":
            raise kind(f"scope {name} is being deleted")

    async def _enter(self, name: str, phase: str, target: Target) -> Scope | None:
        """Return a scope in a phase of its deletion; None if another controller has deleted it.

        If the scope is being created, the creation is finished first, because its controller may
        have died. A phase of deletion that has begun stays. Raises ``ScopeNotFoundError`` if there
        is no scope, or if the name has another scope than at the first attempt.
        """
        if name == names.INTERNAL_SCOPE:
            raise InvalidRequestError(f"scope {name} belongs to the system")
        missing = ScopeNotFoundError(f"scope {name} does not exist")
        scope = await self._store.scopes.find(name)
        if scope is not None and scope.record.phase == "creating":
            await self._finish_for_others(scope)
            scope = await self._store.scopes.find(name)
        if scope is None or not target.includes(scope.record.scope_id):
            if scope is None or scope.record.phase == "active":
                self._store.intents.remove(_intent(name))
            if target.is_begun:
                return None
            raise missing
        if phase == "deleting" and scope.record.phase == "clearing":
            raise missing
        await self._store.intents.put(_intent(name))
        if scope.record.phase != phase:
            scope = await self._change(scope, phase)
        target.is_begun = True
        return scope

    async def _finish_for_others(self, scope: Scope) -> None:
        """Finish the creation of a scope if a dead controller may have begun it."""
        await self._late.promise(scope.tables_intent)
        await self._finish_creating(scope)

    async def _change(self, scope: Scope, phase: str) -> Scope:
        record = structs.replace(scope.record, phase=phase)
        return await self._store.scopes.write(scope.name, record, version=scope.version)

    async def _finish_creating(self, scope: Scope) -> None:
        try:
            await self._store.scopes.create_tables(scope)
        except StepRefusedError:
            await self._delete(await self._change(scope, "deleting"))
            raise
        try:
            await self._change(scope, "active")
        except VersionConflictError:
            # Another controller may have finished the creation, and then deleted the scope.
            await self._store.scopes.delete_unneeded_tables(scope.tables_intent)
            raise
        self._store.intents.remove(_intent(scope.name))

    async def _delete(self, scope: Scope) -> None:
        try:
            await self._store.scopes.delete_tables(scope)
        except TableNotEmptyError:
            await self._change(scope, "active")
            self._store.intents.remove(_intent(scope.name))
            raise
        await self._store.scopes.remove(scope)
        self._store.intents.remove(_intent(scope.name))

    async def _clear(self, scope: Scope) -> None:
        """Delete what a scope contains until the scope is empty.

        Objects whose creation began before the deletion may still appear meanwhile. A later scope
        of this name, and its contents, are not touched.
        """
        while True:
            try:
                groups, streams, tables = await self._list(scope)
            except ScopeNotFoundError:
                # An earlier attempt, or another controller, has deleted this table, but maybe no
                # others.
                await self._store.scopes.delete_tables(scope)
                break
            if not groups and not streams and not tables:
                try:
                    await self._store.scopes.delete_tables(scope)
                    break
                except TableNotEmptyError:
                    log.info("something was still being made in the scope", scope=scope.name)
            # Delete groups before the streams that they subscribe to. The deletion of a stream
            # includes its mark stream.
            await self._for_each(groups, partial(self._groups.delete_in_any_case, scope))
            await self._for_each(tables, partial(self._tables.delete_in_any_case, scope))
            marked = [name for name in streams if not name.startswith(names.MARK_PREFIX)]
            await self._for_each(
                marked or streams, partial(self._streams.deletion.delete_internal, scope)
            )
        await self._store.scopes.remove(scope)
        self._store.intents.remove(_intent(scope.name))

    async def _list(self, scope: Scope) -> list[list[str]]:
        """Return names of reader groups, streams and key-value tables of the scope with this id."""
        kinds = (GROUP_KIND, STREAM_KIND, TABLE_KIND)
        return [(await self._store.scopes.list_objects_of(scope, kind, "")).names for kind in kinds]

    async def _for_each(
        self, found: Iterable[str], delete: Callable[[str], Awaitable[None]]
    ) -> None:
        await for_each(found, delete, limit=CONCURRENT_DELETIONS_MAX)


def _intent(name: str) -> IntentRecord:
    return IntentRecord("scope", name)
