"""Handlers of the RPCs about key-value tables: one function per method.

Owns: their answers, by the rule of ``handlers``.
"""

from __future__ import annotations

from functools import partial

from pravega_controller.errors import KeyValueTableNotFoundError, NotFoundError, ScopeNotFoundError
from pravega_controller.rpc import messages, permissions
from pravega_controller.rpc.listings import list_readable
from pravega_controller.rpc.rpc import Call, rpc
from pravega_controller.tables.key_value_tables import KeyValueTable, KeyValueTableConfiguration
from pravega_security.resources import Level, key_value_table_resource
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import InvalidNameError


@rpc("createKeyValueTable", permissions.change_scope)
async def create_key_value_table(
    call: Call, request: pb.KeyValueTableConfig
) -> pb.CreateKeyValueTableStatus:
    configuration = KeyValueTableConfiguration(
        request.partitionCount,
        request.primaryKeyLength,
        request.secondaryKeyLength,
        request.rolloverSizeBytes,
    )
    status = pb.CreateKeyValueTableStatus.SUCCESS
    try:
        if not await call.controller.tables.create(request.scope, request.kvtName, configuration):
            status = pb.CreateKeyValueTableStatus.TABLE_EXISTS
    except InvalidNameError as error:
        call.explain(error)
        status = pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME
    except ScopeNotFoundError:
        status = pb.CreateKeyValueTableStatus.SCOPE_NOT_FOUND
    return pb.CreateKeyValueTableStatus(status=status)


@rpc("getCurrentSegmentsKeyValueTable", permissions.read_table)
async def get_current_segments_key_value_table(
    call: Call, request: pb.KeyValueTableInfo
) -> pb.SegmentRanges:
    """Return a table's segments under its bare name, to which clients append the suffix."""
    table = await call.controller.tables.get(request.scope, request.kvtName)
    ranges = messages.segment_ranges(request.scope, request.kvtName, table.segments)
    info = messages.stream_info(request.scope, request.kvtName)
    ranges.delegationToken = call.token_for(info, Level.READ_UPDATE)
    return ranges


@rpc("listKeyValueTablesInScope", permissions.read_scope, question=True)
async def list_key_value_tables_in_scope(
    call: Call, request: pb.KVTablesInScopeRequest
) -> pb.KVTablesInScopeResponse:
    scope = request.scope.scope
    try:
        listing = await list_readable(
            call,
            partial(call.controller.tables.list, scope),
            request.continuationToken.token,
            partial(key_value_table_resource, scope),
        )
    except ScopeNotFoundError:
        return pb.KVTablesInScopeResponse(status=pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND)
    return pb.KVTablesInScopeResponse(
        kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in listing.names],
        continuationToken=pb.ContinuationToken(token=listing.token),
        status=pb.KVTablesInScopeResponse.SUCCESS,
    )


@rpc("getKeyValueTableConfiguration", permissions.read_table)
async def get_key_value_table_configuration(
    call: Call, request: pb.KeyValueTableInfo
) -> pb.KeyValueTableConfigResponse:
    try:
        table = await call.controller.tables.get(request.scope, request.kvtName)
    except (ScopeNotFoundError, KeyValueTableNotFoundError):
        return pb.KeyValueTableConfigResponse(status=pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND)
    return pb.KeyValueTableConfigResponse(
        config=_configuration_of(table), status=pb.KeyValueTableConfigResponse.SUCCESS
    )


@rpc("deleteKeyValueTable", permissions.change_table)
async def delete_key_value_table(
    call: Call, request: pb.KeyValueTableInfo
) -> pb.DeleteKVTableStatus:
    try:
        await call.controller.tables.delete(request.scope, request.kvtName)
    except NotFoundError:
        return pb.DeleteKVTableStatus(status=pb.DeleteKVTableStatus.TABLE_NOT_FOUND)
    return pb.DeleteKVTableStatus(status=pb.DeleteKVTableStatus.SUCCESS)


def _configuration_of(table: KeyValueTable) -> pb.KeyValueTableConfig:
    configuration = table.record.configuration
    return pb.KeyValueTableConfig(
        scope=table.scope.name,
        kvtName=table.name,
        partitionCount=configuration.partition_count,
        primaryKeyLength=configuration.primary_key_length,
        secondaryKeyLength=configuration.secondary_key_length,
        rolloverSizeBytes=configuration.rollover_bytes,
    )
