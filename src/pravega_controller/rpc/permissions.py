"""Rows of the table that says what a caller needs for an RPC: resources, and a level.

Owns: the rows that RPCs are declared with, and which resources a stream counts as.

A row is a function of the request. It returns what the caller needs, nothing for an RPC that
anybody may call. Of several resources one is enough: a user who may read the reader group ``g`` may
read the stream ``_RGg`` that clients keep for it.

Rows differ from the original's in two ways. A user who may read a stream gets its segments, and a
token to read them, whatever the request says of its purpose: the original refuses requests that do
not say it, such as those of the Rust client. And the segments of a key-value table are for users
who may use the table.

Invariants:
1. When a stream's name begins with another one's, rights to the other one do not count. Held by
   ``test_a_level_too_low_is_refused_by_each_rpc``.
2. When a caller has rights to a key-value table, they do not count for a stream of that name. Held
   by ``test_rights_to_a_table_are_not_rights_to_a_stream``.
3. When a caller has rights to streams, they give no token for the segments of a key-value table.
   Held by ``test_rights_to_streams_give_no_token_for_a_table``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from pravega_security.resources import (
    ROOT,
    Level,
    key_value_table_resource,
    resource_kept_for,
    scope_resource,
    stream_resource,
)
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import KEY_VALUE_TABLE_SUFFIX, MARK_PREFIX, READER_GROUP_PREFIX

Operation = pb.StreamInfo.AccessOperation
WRITING: Final = frozenset({Operation.WRITE, Operation.READ_WRITE, Operation.ANY})
"""Purposes for which a caller must be allowed to write."""


class HasLevels(Protocol):
    """A caller, as far as rows need it."""

    def authorize(self, resource: str) -> Level:
        """Return what the caller may do with a resource."""
        ...


@dataclass(frozen=True, slots=True)
class Need:
    """A level that the caller needs for one of some resources."""

    level: Level
    resources: tuple[str, ...]

    def is_met_by(self, caller: HasLevels) -> bool:
        """Return whether the caller has the level."""
        return any(caller.authorize(resource) >= self.level for resource in self.resources)


Row: TypeAlias = Callable[[Any, Level], Need | None]
"""Returns the need of a request. The level is what clients of reader groups need where they write
the group's own streams: readers do so, too."""


def anybody(request: Any, group_level: Level) -> Need | None:
    """Let every caller in, also without a user."""
    return None


def read_root(request: Any, group_level: Level) -> Need:
    return Need(Level.READ, (ROOT,))


def change_root(request: Any, group_level: Level) -> Need:
    return Need(Level.READ_UPDATE, (ROOT,))


def read_scope(request: Any, group_level: Level) -> Need:
    return Need(Level.READ, (scope_resource(_scope_of(request)),))


def change_scope(request: Any, group_level: Level) -> Need:
    return Need(Level.READ_UPDATE, (scope_resource(_scope_of(request)),))


def change_groups(request: Any, group_level: Level) -> Need:
    """Ask for what readers have, who make their groups themselves."""
    return Need(group_level, (scope_resource(_scope_of(request)),))


def create_stream(request: pb.StreamConfig, group_level: Level) -> Need:
    """Ask by the kind of name: readers make the streams of groups and watermarks themselves."""
    info = request.streamInfo
    level = Level.READ_UPDATE
    if info.stream.startswith(READER_GROUP_PREFIX):
        level = group_level
    elif info.stream.startswith(MARK_PREFIX):
        level = Level.READ
    return Need(level, (scope_resource(info.scope),))


def read_stream(request: Any, group_level: Level) -> Need:
    info = info_of(request)
    return Need(Level.READ, stream_resources(info.scope, info.stream))


def change_stream(request: Any, group_level: Level) -> Need:
    info = info_of(request)
    return Need(Level.READ_UPDATE, stream_resources(info.scope, info.stream))


def use_stream(request: Any, group_level: Level) -> Need:
    """Ask for reading, or for writing if the request says so."""
    info = info_of(request)
    level = Level.READ
    if info.accessOperation in WRITING:
        level = update_level(info.stream, group_level)
    return Need(level, stream_resources(info.scope, info.stream))


def read_segments(request: Any, group_level: Level) -> Need:
    """Ask for reading a stream, or a key-value table that clients name as a stream."""
    return _of_segments(read_stream(request, group_level), info_of(request))


def use_segments(request: Any, group_level: Level) -> Need:
    """Ask what ``use_stream`` does, also of a key-value table that clients name as a stream."""
    return _of_segments(use_stream(request, group_level), info_of(request))


def _of_segments(need: Need, info: pb.StreamInfo) -> Need:
    table = _table_of(info.scope, info.stream)
    if info.stream.endswith(KEY_VALUE_TABLE_SUFFIX):
        return Need(need.level, (table,))
    return Need(need.level, (*need.resources, table))


def read_table(request: pb.KeyValueTableInfo, group_level: Level) -> Need:
    return Need(Level.READ, (key_value_table_resource(request.scope, request.kvtName),))


def change_table(request: pb.KeyValueTableInfo, group_level: Level) -> Need:
    return Need(Level.READ_UPDATE, (key_value_table_resource(request.scope, request.kvtName),))


def update_level(stream: str, group_level: Level) -> Level:
    """Return the level that a caller needs to write a stream's segments."""
    if stream.startswith(READER_GROUP_PREFIX):
        return group_level
    return Level.READ if stream.startswith(MARK_PREFIX) else Level.READ_UPDATE


def stream_resources(scope: str, stream: str) -> tuple[str, ...]:
    """Return the resources that a stream counts as."""
    found = (resource_kept_for(scope, stream), stream_resource(scope, stream))
    return tuple(dict.fromkeys(found))


def _table_of(scope: str, stream: str) -> str:
    """Return the resource of the key-value table that a stream's name may stand for.

    When clients ask for the segments of a key-value table ``k``, they name it as a stream: the Java
    client as ``k``, others as ``k_kvtable``.
    """
    return key_value_table_resource(scope, stream.removesuffix(KEY_VALUE_TABLE_SUFFIX))


def claims_of(
    caller: HasLevels, scope: str, stream: str, wanted: Level, group_level: Level
) -> dict[str, Level]:
    """Return the claims of a token for a stream's segments: what the caller has, of ``wanted``."""
    has = max(
        caller.authorize(resource_kept_for(scope, stream)),
        caller.authorize(stream_resource(scope, stream)),
    )
    if has >= update_level(stream, group_level):
        # Readers write the streams of their group, and the marks of the streams that they read.
        has = Level.READ_UPDATE
    table = _table_of(scope, stream)
    claims = {table: caller.authorize(table)}
    # The claim of such a stream would be for the segments of the table.
    if not stream.endswith(KEY_VALUE_TABLE_SUFFIX):
        claims[stream_resource(scope, stream)] = has
    return {
        resource: min(level, wanted) for resource, level in claims.items() if level > Level.NONE
    }


def info_of(request: Any) -> pb.StreamInfo:
    """Return the stream that a request is about."""
    if isinstance(request, pb.StreamInfo):
        return request
    if isinstance(request, pb.TimestampFromWriter):
        return request.position.streamInfo
    if isinstance(request, pb.SubscriberStreamCut):
        return request.streamCut.streamInfo
    if isinstance(request, pb.RemoveWriterRequest):
        return request.stream
    info: pb.StreamInfo = request.streamInfo
    return info


def _scope_of(request: Any) -> str:
    scope = request.scope
    return scope if isinstance(scope, str) else str(scope.scope)
