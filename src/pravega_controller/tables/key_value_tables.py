"""Key-value tables: their configuration, creation and deletion.

Owns: a table's configuration and record, and its two workflows. A table is a fixed number of table
segments that share the key space evenly; clients read and write them without the controller.

    request -> intent -> record with ``pending`` -> segments -> pending = None -> no intent

A table's segments never change: its configuration and its first segment number determine them.

The record names the request that has created the table, so that this request, and no other one,
gets the answer that it has, whichever controller did the rest. The request whose controller has
recorded the deletion has deleted the table.

Invariants:
1. When a table is deleted and created again, no segment name is used twice: the number after the
   last segment is stored. Held by ``test_a_scope_made_anew_uses_no_segment_name_again``.
2. When a controller dies at any step of a workflow, another one repeats the steps, and finishes it.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
3. When a slow controller creates segments of a table that was deleted meanwhile, they are deleted.
   Held by ``test_a_slow_controller_leaves_no_segment_of_a_table_that_was_deleted``.
4. When two controllers are asked at once to create a table, or to delete it, one of them answers
   that it did. Held by ``test_one_of_two_who_create_or_delete_at_once_wins``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import structs

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import (
    InvalidRequestError,
    KeyValueTableNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    ScopeNotFoundError,
    StepRefusedError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import Target, until_unchanged
from pravega_controller.metadata.locks import WorkflowLocks
from pravega_controller.metadata.records import IntentRecord, decode, encode
from pravega_controller.metadata.scope_records import Listing, Scope
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.rules.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    even_ranges,
    segments_in_ranges,
)
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_wire import names

KEY_BYTES_MAX = 256
"""Maximum length of a key, primary and secondary part together, in bytes."""

OBJECT_KIND = "t"
INTENT_KIND = "key-value-table"
LATE_KIND = "table-segments"
"""Kind of the intents to delete segments that late requests of a dead controller create."""

log = structlog.get_logger(__name__)


class KeyValueTableConfiguration(msgspec.Struct, frozen=True):
    """A user's settings of a key-value table. Lengths are in bytes."""

    partition_count: int
    primary_key_length: int
    secondary_key_length: int = 0
    rollover_bytes: int = 0


class CreateTable(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    """The table's segments are being created."""


class DeleteTable(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    """The table's segments are being deleted with their contents."""


TableWorkflow: TypeAlias = CreateTable | DeleteTable


class KeyValueTableRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A key-value table. Its segments are numbered from ``first_number``."""

    configuration: KeyValueTableConfiguration
    created_ms: int
    first_number: int
    pending: TableWorkflow | None
    creation: str
    """A random id of the request that has created the table: no other table of its name has it."""


@dataclass(frozen=True, slots=True)
class KeyValueTable:
    """A table as it was read last: its record, and the record's version."""

    scope: Scope
    name: str
    version: int
    record: KeyValueTableRecord

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the table's segments, by key range."""
        ranges = even_ranges(self.record.configuration.partition_count)
        return segments_in_ranges(ranges, epoch=0, first_number=self.record.first_number)

    def segment_name(self, segment: Segment) -> str:
        stream = names.key_value_table_stream(self.name)
        return names.segment_name(self.scope.name, stream, segment.segment_id)


@dataclass(slots=True)
class _TableCreation:
    """A request to create a table, over all of its attempts."""

    identity: str
    is_begun: bool = False
    """True once its record is written: the table is that of this request."""
    has_segments: bool = False
    """True once the segments exist. Nothing can refuse the table any more."""

    def end_without_table(self, name: str) -> bool:
        """Return the answer if another controller went on, and the table is gone by now."""
        if not self.has_segments:
            raise OutcomeUnknownError(f"{name} is gone since its creation was begun")
        return True


def validate_table_configuration(configuration: KeyValueTableConfiguration) -> None:
    """Raise ``InvalidRequestError`` if no table can have this configuration."""
    count = configuration.partition_count
    if not 1 <= count <= SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"a key-value table has 1 to {SEGMENTS_PER_STREAM_MAX} partitions, not {count}"
        )
    primary, secondary = configuration.primary_key_length, configuration.secondary_key_length
    if primary < 1:
        raise InvalidRequestError(f"a primary key has at least one byte, not {primary}")
    if secondary < 0:
        raise InvalidRequestError(f"a secondary key cannot have {secondary} bytes")
    if primary + secondary > KEY_BYTES_MAX:
        raise InvalidRequestError(
            f"primary and secondary key have at most {KEY_BYTES_MAX} bytes together, "
            f"not {primary + secondary}"
        )
    if configuration.rollover_bytes < 0:
        raise InvalidRequestError(
            f"the rollover size cannot be {configuration.rollover_bytes} bytes"
        )


class KeyValueTableOperations:
    """Answers requests about key-value tables."""

    def __init__(
        self,
        store: MetadataStore,
        late: LateSegments,
        *,
        now_ms: Callable[[], int],
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._tables = store.tables
        self._now_ms = now_ms
        self._locks = WorkflowLocks(finish_later)
        self._late = late
        late.register(LATE_KIND, self._delete_late)

    async def create(
        self, scope: str, name: str, configuration: KeyValueTableConfiguration
    ) -> bool:
        """Create a table; return False if it existed.

        Raises ``InvalidNameError``, ``InvalidRequestError``, ``ScopeNotFoundError``, and
        ``StepRefusedError`` if a segment store refuses the segments. Raises ``OutcomeUnknownError``
        if the table was begun, and is gone.
        """
        names.validate_user_name(name)
        validate_table_configuration(configuration)
        request = _TableCreation(self._store.new_id())
        return await until_unchanged(partial(self._begin, scope, name, configuration, request))

    async def _begin(
        self,
        scope: str,
        name: str,
        configuration: KeyValueTableConfiguration,
        request: _TableCreation,
    ) -> bool:
        async with self._locks.hold(_intent(scope, name)):
            try:
                owner = await self._store.scopes.find_active(scope)
                found = await self._load(scope, name)
                await self._finish_found(found)
            except ScopeNotFoundError:
                if not request.is_begun:
                    raise
                return request.end_without_table(name)
            except KeyValueTableNotFoundError:
                if request.is_begun:
                    return request.end_without_table(name)
                log.info("creating key-value table", scope=scope, table=name)
            else:
                return found.record.creation == request.identity
            record = KeyValueTableRecord(
                configuration,
                created_ms=self._now_ms(),
                first_number=await self._store.names.next_number(
                    scope, names.key_value_table_stream(name)
                ),
                pending=CreateTable(),
                creation=request.identity,
            )
            await self._store.intents.put(_intent(scope, name))
            table = await self._insert(KeyValueTable(owner, name, NOT_EXISTS, record))
            request.is_begun = True
            try:
                await self._do_steps(table, request)
            except ScopeNotFoundError:
                return request.end_without_table(name)
            return True

    async def _insert(self, table: KeyValueTable) -> KeyValueTable:
        """Write the record of a new table, and return the table as it is stored."""
        try:
            return await self._write(table, table.record)
        except UncertainConflictError:
            with suppress(NotFoundError):
                found = await self._load(table.scope.name, table.name)
                if found.record.creation == table.record.creation:
                    return found
            raise

    async def get(self, scope: str, name: str) -> KeyValueTable:
        """Return a table whose segments exist. Raises ``KeyValueTableNotFoundError``."""
        table = await self._load(scope, name)
        if table.record.pending is not None:
            async with self._locks.hold(_intent(scope, name)):
                return await self._finish_and_read(scope, name)
        return table

    async def delete(self, scope: str, name: str, *, scope_id: str = "") -> None:
        """Delete a table with its contents.

        Raises ``KeyValueTableNotFoundError``, also if the scope has another id than ``scope_id``.
        """
        target = Target()

        async def delete() -> None:
            if target.is_begun:
                # Another controller may finish the deletion. A table that was created since is
                # kept.
                await self.finish(scope, name)
                return
            async with self._locks.hold(_intent(scope, name)):
                table = await self._load(scope, name)
                owner_id = table.scope.record.scope_id
                is_in_scope = not scope_id or owner_id == scope_id
                if not is_in_scope or not target.includes(f"{owner_id}/{table.record.creation}"):
                    raise KeyValueTableNotFoundError(f"{scope}/{name} is another table by now")
                table = await self._finish_found(table)
                await self._store.intents.put(_intent(scope, name))
                record = structs.replace(table.record, pending=DeleteTable())
                table = await self._write(table, record)
                target.is_begun = True
                await self._do_steps(table)

        await until_unchanged(delete)

    async def delete_in_any_case(self, scope: Scope, name: str) -> None:
        """Delete a table with its contents, if the scope with this id has it."""
        try:
            await self.delete(scope.name, name, scope_id=scope.record.scope_id)
        except NotFoundError:
            log.debug("key-value table does not exist", scope=scope.name, table=name)

    async def list(self, scope: str, token: str) -> Listing:
        """Return a page of the names of a scope's tables. Raises ``ScopeNotFoundError``."""
        return await self._store.scopes.list_objects(scope, OBJECT_KIND, token)

    async def finish(self, scope: str, name: str) -> None:
        """Finish the pending workflow of a table, if it exists."""
        async with self._locks.hold(_intent(scope, name)):
            try:
                await self._finish_and_read(scope, name)
            except NotFoundError:
                log.debug("nothing to finish", scope=scope, table=name)
            self._store.intents.remove(_intent(scope, name))

    # ---- Workflows -------------------------------------------------------------------------------

    async def _load(self, scope: str, name: str) -> KeyValueTable:
        owner, entry = await self._store.scopes.get_object(scope, OBJECT_KIND, name)
        if entry is None:
            raise KeyValueTableNotFoundError(f"key-value table {scope}/{name} does not exist")
        record = decode(entry.value, KeyValueTableRecord)
        return KeyValueTable(owner, name, entry.version, record)

    async def _finish_and_read(self, scope: str, name: str) -> KeyValueTable:
        return await self._finish_found(await self._load(scope, name))

    async def _finish_found(self, table: KeyValueTable) -> KeyValueTable:
        """Finish the pending workflow of a table, if any.

        Raises ``KeyValueTableNotFoundError`` if the workflow was the deletion, or a creation that
        a segment store refuses.
        """
        missing = KeyValueTableNotFoundError(
            f"key-value table {table.scope.name}/{table.name} does not exist"
        )
        if isinstance(table.record.pending, CreateTable):
            await self._promise_to_look(table)
        try:
            finished = await self._do_steps(table)
        except StepRefusedError as error:
            scope, name = table.scope.name, table.name
            log.error("workflow failed for good", scope=scope, table=name, reason=str(error))
            raise missing from error
        if finished is None:
            raise missing
        return finished

    async def _write(self, table: KeyValueTable, record: KeyValueTableRecord) -> KeyValueTable:
        version = await self._store.scopes.put_object(
            table.scope, OBJECT_KIND, table.name, encode(record), version=table.version
        )
        return KeyValueTable(table.scope, table.name, version, record)

    async def _do_steps(
        self, table: KeyValueTable, request: _TableCreation | None = None
    ) -> KeyValueTable | None:
        pending = table.record.pending
        if pending is None:
            return table
        finished: KeyValueTable | None = None
        match pending:
            case CreateTable():
                finished = await self._create(table, request)
            case DeleteTable():
                await self._delete(table)
        self._store.intents.remove(_intent(table.scope.name, table.name))
        return finished

    async def _create(self, table: KeyValueTable, request: _TableCreation | None) -> KeyValueTable:
        """Create the segments of a table, for its ``request`` or for another controller's."""
        stream = names.key_value_table_stream(table.name)
        number = await self._store.names.next_number(table.scope.name, stream)
        if number > table.record.first_number:
            # Another controller has created and deleted a table since this one read the name.
            table = await self._write(table, structs.replace(table.record, first_number=number))
            # Another controller may have recorded the same numbers, and may request these segments,
            # too.
            await self._promise_to_look(table)
        configuration = table.record.configuration
        key_length = configuration.primary_key_length + configuration.secondary_key_length

        async def create(segment: Segment) -> None:
            await self._tables.create(
                table.segment_name(segment),
                key_length=key_length,
                rollover_bytes=configuration.rollover_bytes,
            )

        try:
            await for_each(table.segments, create)
        except StepRefusedError:
            record = structs.replace(table.record, pending=DeleteTable())
            await self._do_steps(await self._write(table, record))
            raise
        if request is not None:
            request.has_segments = True
        try:
            return await self._write(table, structs.replace(table.record, pending=None))
        except (VersionConflictError, ScopeNotFoundError) as error:
            if not await self._is_there(table):
                # Another controller deleted the table. No other one will ever have these segments.
                await self._delete_segments(table)
            if isinstance(error, UncertainConflictError):
                # It does not matter which controller wrote this: the record names the request that
                # created the table.
                raise VersionConflictError(str(error)) from error
            raise

    async def _is_there(self, table: KeyValueTable) -> bool:
        """Return whether this table, and not a later one of its name, exists and is not deleted."""
        try:
            current = await self._load(table.scope.name, table.name)
        except NotFoundError:
            return False
        is_same = current.record.creation == table.record.creation
        return is_same and not isinstance(current.record.pending, DeleteTable)

    async def _delete_segments(self, table: KeyValueTable) -> None:
        async def delete(segment: Segment) -> None:
            await self._tables.delete(table.segment_name(segment), must_be_empty=False)

        await for_each(table.segments, delete)

    async def _promise_to_look(self, table: KeyValueTable) -> None:
        """Record that segments which another controller may create late are deleted.

        That controller may have died. This one creates the segments now, and a client may delete
        the table before the late requests arrive.
        """
        identifiers = tuple(segment.segment_id for segment in table.segments)
        name = f"{table.name}/{table.record.first_number}"
        intent = IntentRecord(LATE_KIND, table.scope.name, name, segment_ids=identifiers)
        await self._late.promise(intent)

    async def _delete_late(self, intent: IntentRecord) -> None:
        """Delete those segments of an intent that no table has or will have."""
        name, _, _ = intent.name.partition("/")
        stream = names.key_value_table_stream(name)
        try:
            record = (await self._load(intent.scope, name)).record
        except NotFoundError:
            end = await self._store.names.next_number(intent.scope, stream)
        else:
            end = record.first_number
            if isinstance(record.pending, CreateTable):
                # An earlier table may have had the same numbers.
                end = max(end, await self._store.names.next_number(intent.scope, stream))
            elif isinstance(record.pending, DeleteTable):
                end += record.configuration.partition_count

        async def delete(segment_id: int) -> None:
            segment = names.segment_name(intent.scope, stream, segment_id)
            await self._tables.delete(segment, must_be_empty=False)

        unneeded = [one for one in intent.segment_ids if names.segment_number(one) < end]
        await for_each(unneeded, delete)

    async def _delete(self, table: KeyValueTable) -> None:
        await self._delete_segments(table)
        record = table.record
        end = record.first_number + record.configuration.partition_count
        numbers = {names.key_value_table_stream(table.name): end}
        await self._store.names.write_next_numbers(table.scope.name, numbers)
        await self._store.scopes.remove_object(
            table.scope, OBJECT_KIND, table.name, version=table.version
        )


def _intent(scope: str, name: str) -> IntentRecord:
    return IntentRecord(INTENT_KIND, scope, name)
