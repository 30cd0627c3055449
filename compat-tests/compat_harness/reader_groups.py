"""Reader groups as official clients make them, without a client.

Owns: a group of one stream, and the first revision of its state. It has no reader, so it stays
where it is until somebody moves it.
"""

from __future__ import annotations

import os
from uuid import UUID

from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.changes import encode_changes
from pravega_wire.reader_groups.settings import GroupSettings
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.group_configuration import find_begin, from_message, to_message
from segstore_client.cuts.group_state import open_state


def create_reader_group(client: ControllerClient, scope: str, name: str, stream: str) -> UUID:
    """Create a group that reads all of a stream; return its id."""
    return UUID(bytes=_create(client, scope, name, stream).identifier)


def begin_reader_group(client: ControllerClient, scope: str, name: str, stream: str) -> None:
    """Create a group, and begin its state at the head of the stream."""
    settings = _create(client, scope, name, stream)
    with open_state(client, scope, name, purpose=Purpose.READ_WRITE) as log:
        log.read()
        assert log.append(encode_changes([find_begin(client, settings)]))


def _create(client: ControllerClient, scope: str, name: str, stream: str) -> GroupSettings:
    whole = {scoped_name(scope, stream): dict[int, int]()}
    settings = GroupSettings(whole, whole, checkpoint_ms=-1, identifier=os.urandom(16))
    found, is_mine = client.create_group(to_message(scope, name, settings))
    assert is_mine
    return from_message(found, found.generation)
