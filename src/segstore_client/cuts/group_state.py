"""The state of a reader group, which its readers keep in the stream ``_RG<group>``.

Owns: the way to that state, and the sentence about a group that no client has begun.
"""

from __future__ import annotations

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import READER_GROUP_PREFIX, reader_group_stream, scoped_name
from pravega_wire.reader_groups.states import GroupState
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.segment_log import SegmentLog
from segstore_client.errors import ConflictError, NotFoundError, PravegaError


def open_state(
    controller: ControllerClient, scope: str, group: str, *, purpose: Purpose = Purpose.READ
) -> SegmentLog:
    """Return the log of a group's state. Raises ``NotFoundError`` if there is no such group."""
    try:
        return SegmentLog(controller, scope, reader_group_stream(group), purpose=purpose)
    except NotFoundError:
        raise NotFoundError(f"reader group {scoped_name(scope, group)} does not exist") from None


def read_state(log: SegmentLog) -> GroupState:
    """Return the present state of a group, read from its log.

    Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if no client has begun
    it.
    """
    group = log.name.replace(f"/{READER_GROUP_PREFIX}", "/", 1)
    state = GroupState()
    try:
        for revision in log.read():
            state.add(revision)
    except NotFoundError:
        raise NotFoundError(f"reader group {group} does not exist") from None
    except RemoteProtocolError as error:
        raise PravegaError(f"{log.name} has no state of a reader group: {error}") from error
    if not state.is_begun:
        raise ConflictError(f"no client has begun the reader group {group}")
    return state


def find_state(controller: ControllerClient, scope: str, group: str) -> GroupState:
    """Return the present state of a group, as ``read_state``."""
    with open_state(controller, scope, group) as log:
        return read_state(log)
