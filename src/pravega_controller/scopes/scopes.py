"""Scopes: their creation, and their deletion with or without contents.

Owns: a scope's phases (``scope_records`` says what each one means).

    creating -> active -> deleting -> (gone)     an empty scope; it is gone with its objects table
                active -> clearing -> (gone)     a scope and all in it, also if ``deleting``

The controller that has written the record of a new scope has created the scope; the one that has
deleted its table of objects has deleted the scope. Another controller may do the rest. All others
answer that the scope exists already, or that there is none.

Invariants:
1. When a scope is deleted while clients create streams in it, each stream is created before, and
   the scope is kept or the stream deleted with it; or the stream is refused.
   Held by ``test_a_stream_being_made_in_a_scope_that_goes_is_not_lost``.
2. When a deletion is refused because the scope is not empty, the scope can be used as before, also
   during the deletion. Held by ``test_a_refused_deletion_of_a_scope_shows_nothing``.
3. When another controller finishes a deletion, and a client creates the scope again, the first
   deletion deletes nothing of the new scope: scopes have ids.
   Held by ``test_what_is_made_after_a_deletion_stays``.
4. When two controllers are asked at once to create a scope, or to delete it, one of them answers
   that it did. Held by ``test_one_of_two_who_create_or_delete_at_once_wins``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog
from msgspec import structs

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import (
    AlreadyExistsError,
    ControllerError,
    InvalidRequestError,
    OutcomeUnknownError,
    ScopeNotFoundError,
    StepRefusedError,
    TableNotEmptyError,
    UncertainConflictError,
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
from pravega_controller.store_client.table_client import Deleted
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_controller.tables.key_value_tables import OBJECT_KIND as TABLE_KIND
from pravega_controller.tables.key_value_tables import KeyValueTableOperations
from pravega_wire import names

CONCURRENT_DELETIONS_MAX = 16
"""Maximum number of objects of a scope that are deleted at the same time."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _ScopeCreation:
    """A request to create a scope, over all of its attempts."""

    scope_id: str = ""
    """The id of the scope whose record it has written; empty until then."""
    has_tables: bool = False
    """True once the scope's tables exist. Nothing can refuse the scope any more, so that it exists,
    or has existed."""


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

        Raises ``InvalidNameError``, ``AlreadyExistsError``, ``StepRefusedError`` if a segment store
        refuses the tables, and ``OutcomeUnknownError`` if the scope was begun, and is gone.
        """
        names.validate_name(name)
        await self._refuse_while_clearing(name, AlreadyExistsError)
        await until_unchanged(partial(self._create, name, _ScopeCreation()))

    async def _create(self, name: str, request: _ScopeCreation) -> None:
        """Create a scope, or go on with that after an attempt that met a conflict."""
        async with self._locks.hold(_intent(name)):
            scope = await self._find_whole(name)
            is_own = scope is not None and scope.record.scope_id == request.scope_id
            if request.scope_id and not is_own:
                self._store.intents.remove(_intent(name))
                if request.has_tables:
                    return
                raise OutcomeUnknownError(f"scope {name} is gone since its creation was begun")
            if scope is None:
                await self._store.intents.put(_intent(name))
                try:
                    scope = await self._store.scopes.insert(name)
                except VersionConflictError:
                    self._store.intents.remove(_intent(name))
                    raise
                request.scope_id = scope.record.scope_id
            elif not is_own and scope.record.phase == "creating":
                await self._late.promise(scope.tables_intent)
            if scope.record.phase == "creating":
                await self._finish_creating(scope, request)
            if scope.record.scope_id != request.scope_id:
                raise AlreadyExistsError(f"scope {name} exists")

    async def exists(self, name: str) -> bool:
        scope = await self._store.scopes.find(name)
        return scope is not None and await self._store.scopes.is_there(scope)

    async def delete(self, name: str) -> None:
        """Delete an empty scope.

        Raises ``ScopeNotFoundError``, ``TableNotEmptyError``, and ``OutcomeUnknownError`` if the
        scope is gone, and the reply that says whose request deleted it was lost.
        """
        await self._refuse_while_clearing(name, ScopeNotFoundError)
        await until_unchanged(partial(self._delete, name, Target()))

    async def _delete(self, name: str, target: Target) -> None:
        missing = ScopeNotFoundError(f"scope {name} does not exist")
        async with self._locks.hold(_intent(name)):
            scope = await self._find_made(name)
            if scope is None or not target.includes(scope.record.scope_id):
                raise missing
            if scope.record.phase == "clearing":
                raise missing
            # What can be refused is refused before anything is written.
            if not await self._store.scopes.is_empty(scope):
                raise TableNotEmptyError(f"scope {name} is not empty")
            await self._store.intents.put(_intent(name))
            try:
                scope = await self._change(scope, "deleting")
            except UncertainConflictError as error:
                # The phase alone decides nothing.
                raise VersionConflictError(str(error)) from error
            try:
                deleted = await self._store.scopes.delete_objects(scope)
            except TableNotEmptyError:
                self._store.intents.remove(_intent(name))
                raise
            await self._store.scopes.remove_rest(scope)
            self._store.intents.remove(_intent(name))
            if deleted is Deleted.BEFORE:
                raise missing
            if deleted is Deleted.PERHAPS_NOW:
                raise OutcomeUnknownError(f"scope {name} is gone, maybe by another request")

    async def delete_with_contents(self, name: str) -> None:
        """Delete a scope and its contents. Raises ``ScopeNotFoundError``.

        If such a deletion is recorded already, this call continues it: its controller may have
        died.
        """
        await until_unchanged(partial(self._delete_all, name, Target()))

    async def _delete_all(self, name: str, target: Target) -> None:
        async with self._locks.hold(_intent(name)):
            scope = await self._find_made(name)
            if scope is None or not target.includes(scope.record.scope_id):
                if target.is_begun:
                    return
                raise ScopeNotFoundError(f"scope {name} does not exist")
            await self._store.intents.put(_intent(name))
            if scope.record.phase != "clearing":
                scope = await self._change(scope, "clearing")
            target.is_begun = True
            await self._clear(scope)

    async def finish(self, name: str, _: str = "") -> None:
        """Finish the pending workflow of a scope, if it exists."""
        async with self._locks.hold(_intent(name)):
            scope = await self._find_whole(name)
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
                # Nobody was told that the scope is deleted, and it stays. But the request of a dead
                # controller to delete its objects may come late.
                await self._late.promise(scope.tables_intent)
                self._store.intents.remove(_intent(name))

    async def _refuse_while_clearing(self, name: str, kind: type[ControllerError]) -> None:
        """Raise an error of ``kind`` while this controller clears the scope: it may take long.

        Raises ``InvalidRequestError`` for the system's scope.
        """
        if name == names.INTERNAL_SCOPE and kind is ScopeNotFoundError:
            raise InvalidRequestError(f"scope {name} belongs to the system")
        scope = await self._store.scopes.find(name)
        if scope is not None and scope.record.phase == "clearing":
            raise kind(f"scope {name} is being deleted")

    async def _find_whole(self, name: str) -> Scope | None:
        """Return a scope in any phase, or None. Removes the rest of one whose objects are gone."""
        scope = await self._store.scopes.find(name)
        if scope is None or scope.record.phase != "deleting":
            return scope
        if await self._store.scopes.is_there(scope):
            return scope
        await self._store.scopes.remove_rest(scope)
        return None

    async def _find_made(self, name: str) -> Scope | None:
        """Return a scope that is there, or None. Finishes a creation: the controller that began it
        may be dead."""
        if name == names.INTERNAL_SCOPE:
            raise InvalidRequestError(f"scope {name} belongs to the system")
        scope = await self._find_whole(name)
        if scope is not None and scope.record.phase == "creating":
            await self._finish_for_others(scope)
            scope = await self._find_whole(name)
        if scope is None or scope.record.phase == "active":
            self._store.intents.remove(_intent(name))
        return scope

    async def _finish_for_others(self, scope: Scope) -> None:
        """Finish the creation of a scope if a dead controller may have begun it."""
        await self._late.promise(scope.tables_intent)
        await self._finish_creating(scope)

    async def _change(self, scope: Scope, phase: str) -> Scope:
        record = structs.replace(scope.record, phase=phase)
        return await self._store.scopes.write(scope.name, record, version=scope.version)

    async def _finish_creating(self, scope: Scope, request: _ScopeCreation | None = None) -> None:
        try:
            await self._store.scopes.create_tables(scope)
        except StepRefusedError:
            # After this write no other controller can make the scope active.
            scope = await self._change(scope, "creating")
            await self._store.scopes.delete_tables(scope)
            await self._store.scopes.remove(scope)
            self._store.intents.remove(_intent(scope.name))
            raise
        if request is not None and request.scope_id == scope.record.scope_id:
            request.has_tables = True
        try:
            await self._change(scope, "active")
        except VersionConflictError as error:
            # Another controller may have finished the creation, and then deleted the scope.
            await self._store.scopes.delete_unneeded_tables(scope.tables_intent)
            # Whose write this was does not matter: the creator of a scope is known by the scope's
            # id.
            raise VersionConflictError(str(error)) from error
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
                break
            if not groups and not streams and not tables:
                try:
                    await self._store.scopes.delete_objects(scope)
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
        await self._store.scopes.remove_rest(scope)
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
