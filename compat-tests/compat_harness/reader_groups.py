"""Reader groups as official clients make them, without a client.

Owns: a group of one stream, and the first revision of its state. It has no reader, so it stays
where it is until somebody moves it.
"""

from __future__ import annotations

import uuid

from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.groups.state import open_state
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.states import GroupSettings, encode_begun


def create_reader_group(client: ControllerClient, scope: str, name: str, stream: str) -> uuid.UUID:
    """Create a group that reads all of a stream; return its id."""
    identifier = uuid.uuid4()
    cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
    request = pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=name,
        readerGroupId=str(identifier),
        startingStreamCuts=[cut],
        endingStreamCuts=[cut],
    )
    client._call("createReaderGroup", request, pb.CreateReaderGroupResponse, scope)
    return identifier


def begin_reader_group(client: ControllerClient, scope: str, name: str, stream: str) -> None:
    """Create a group, and begin its state at the head of the stream."""
    identifier = create_reader_group(client, scope, name, stream)
    whole = {scoped_name(scope, stream): dict[int, int]()}
    settings = GroupSettings(
        starts=whole,
        ends=whole,
        checkpoint_ms=-1,
        refresh_ms=3000,
        outstanding_max=3,
        retention=0,
        generation=0,
        identifier=identifier.bytes,
    )
    head = client.head_segments(scope, stream).offsets
    with open_state(client, scope, name, purpose=Purpose.READ_WRITE) as log:
        log.read()
        assert log.append(encode_begun(settings, {scoped_name(scope, stream): head}))
